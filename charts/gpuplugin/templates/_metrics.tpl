{{/* The port that metrics are served on; empty where they are not. */}}
{{- define "gpuplugin.metricsPort" -}}
{{- with .Values.config.metrics }}
{{- if .enabled }}{{ dig "address" ":9400" . | splitList ":" | last }}{{ end }}
{{- end }}
{{- end }}
