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

{{/*
What a configuration says of a setting, as text: (list CONFIGURATION "dra.gpus"). Empty where it is not given, null or
false, also where a section that it is in is null.
*/}}
{{- define "gpuplugin.setting" -}}
{{- $found := first . }}
{{- range splitList "." (last .) }}
{{- if kindIs "map" $found }}{{ $found = get $found . }}{{ else }}{{ $found = "" }}{{ end }}
{{- end }}
{{- if $found }}{{ $found }}{{ end }}
{{- end }}

{{/* Not empty where claims are served, or may still have to be unprepared. */}}
{{- define "gpuplugin.claims" -}}
{{- $claims := .Values.claims.enabled }}
{{- range prepend (values .Values.profiles.files) .Values.config }}
{{- $claims = or $claims (include "gpuplugin.setting" (list . "dra.gpus")) }}
{{- end }}
{{- if $claims }}yes{{ end }}
{{- end }}

{{/* Not empty where the daemon talks to the Kubernetes API. */}}
{{- define "gpuplugin.api" -}}
{{- if or .Values.startupTaint.enabled .Values.profiles.files (include "gpuplugin.claims" .) (include "gpuplugin.topology" .) (include "gpuplugin.condition" .) (include "gpuplugin.events" .) .Values.explain.apiAccess (has (include "gpuplugin.labelsOwner" .) (list "node" "nfd-object")) }}yes{{ end }}
{{- end }}

{{/* Who writes the node's labels: off, node, nfd-object or nfd-file. */}}
{{- define "gpuplugin.labelsOwner" -}}
{{- include "gpuplugin.setting" (list .Values.config "labels.owner") | default "off" }}
{{- end }}

{{/* Not empty where a NodeResourceTopology object is kept. */}}
{{- define "gpuplugin.topology" -}}
{{- if include "gpuplugin.setting" (list .Values.config "labels.topologyObject") }}yes{{ end }}
{{- end }}

{{/* Not empty where the Node has the condition GPUsHealthy. */}}
{{- define "gpuplugin.condition" -}}
{{- if include "gpuplugin.setting" (list .Values.config "node.healthCondition") }}yes{{ end }}
{{- end }}

{{/* Not empty where faults of GPUs are told in Events of the Node. */}}
{{- define "gpuplugin.events" -}}
{{- if include "gpuplugin.setting" (list .Values.config "events.enabled") }}yes{{ end }}
{{- end }}

{{/* The folder of the feature file, where labels go out by one. */}}
{{- define "gpuplugin.featureFolder" -}}
{{- if eq (include "gpuplugin.labelsOwner" .) "nfd-file" }}{{ include "gpuplugin.setting" (list .Values.config "flags.gfd.outputFile") | default "/etc/kubernetes/node-feature-discovery/features.d/gfd" | dir }}{{ end }}
{{- end }}

{{/* The host's folder of MPS control daemons, where a configuration shares GPUs by MPS, or clients may be left. */}}
{{- define "gpuplugin.mps" -}}
{{- $root := ternary "/run/nvidia/mps" "" .Values.mps.enabled }}
{{- range prepend (values .Values.profiles.files) .Values.config }}
{{- if or $.Values.mps.enabled (include "gpuplugin.setting" (list . "sharing.mps")) }}
{{- $root = include "gpuplugin.setting" (list . "flags.mpsRoot") | default "/run/nvidia/mps" }}
{{- end }}
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
