{{- define "gpuplugin.labels" -}}
app.kubernetes.io/name: gpuplugin
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpuplugin.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty where claims are served, or may still have to be unprepared. */}}
{{- define "gpuplugin.claims" -}}
{{- $claims := .Values.claims.enabled }}
{{- range prepend (values .Values.profiles.files) .Values.config }}
{{- $claims = or $claims (dig "dra" "gpus" "" .) }}
{{- end }}
{{- if $claims }}yes{{ end }}
{{- end }}

{{/* Not empty where the daemon talks to the Kubernetes API. */}}
{{- define "gpuplugin.api" -}}
{{- if or .Values.startupTaint.enabled .Values.profiles.files (include "gpuplugin.claims" .) (include "gpuplugin.topology" .) (include "gpuplugin.condition" .) (include "gpuplugin.events" .) .Values.explain.apiAccess (has (include "gpuplugin.labelsOwner" .) (list "node" "nfd-object")) }}yes{{ end }}
{{- end }}

{{/* Who writes the node's labels: off, node, nfd-object or nfd-file. */}}
{{- define "gpuplugin.labelsOwner" -}}
{{- dig "labels" "owner" "off" .Values.config }}
{{- end }}

{{/* Not empty where a NodeResourceTopology object is kept. */}}
{{- define "gpuplugin.topology" -}}
{{- if dig "labels" "topologyObject" false .Values.config }}yes{{ end }}
{{- end }}

{{/* Not empty where the Node has the condition GPUsHealthy. */}}
{{- define "gpuplugin.condition" -}}
{{- if dig "node" "healthCondition" false .Values.config }}yes{{ end }}
{{- end }}

{{/* Not empty where faults of GPUs are told in Events of the Node. */}}
{{- define "gpuplugin.events" -}}
{{- if dig "events" "enabled" false .Values.config }}yes{{ end }}
{{- end }}

{{/* The folder of the feature file, where labels go out by one. */}}
{{- define "gpuplugin.featureFolder" -}}
{{- if eq (include "gpuplugin.labelsOwner" .) "nfd-file" }}{{ dig "flags" "gfd" "outputFile" "/etc/kubernetes/node-feature-discovery/features.d/gfd" .Values.config | dir }}{{ end }}
{{- end }}

{{/* The host's folder of MPS control daemons, where a configuration shares GPUs by MPS, or clients may be left. */}}
{{- define "gpuplugin.mps" -}}
{{- $root := ternary "/run/nvidia/mps" "" .Values.mps.enabled }}
{{- range prepend (values .Values.profiles.files) .Values.config }}
{{- if dig "sharing" "mps" $.Values.mps.enabled . }}{{ $root = dig "flags" "mpsRoot" "/run/nvidia/mps" . }}{{ end }}
{{- end }}
{{- $root }}
{{- end }}

{{- define "gpuplugin.mpsLabels" -}}
app.kubernetes.io/name: gpuplugin-mps
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpuplugin.cleanupLabels" -}}
app.kubernetes.io/name: gpuplugin-cleanup
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
