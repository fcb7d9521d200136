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
{{- if or .Values.claims.enabled (dig "dra" "gpus" "" .Values.config) }}yes{{ end }}
{{- end }}

{{/* Not empty where the daemon talks to the Kubernetes API. */}}
{{- define "gpuplugin.api" -}}
{{- if or .Values.startupTaint.enabled .Values.profiles.files (include "gpuplugin.claims" .) }}yes{{ end }}
{{- end }}

{{/* The host's folder of MPS control daemons, where the configuration shares GPUs by MPS. */}}
{{- define "gpuplugin.mps" -}}
{{- if dig "sharing" "mps" "" .Values.config }}{{ dig "flags" "mpsRoot" "/run/nvidia/mps" .Values.config }}{{ end }}
{{- end }}
