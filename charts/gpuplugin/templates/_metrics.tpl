{{/* The port that metrics are served on; empty where they are not. */}}
{{- define "gpuplugin.metricsPort" -}}
{{- if include "gpuplugin.setting" (list .Values.config "metrics.enabled") }}
{{- include "gpuplugin.setting" (list .Values.config "metrics.address") | default ":9400" | splitList ":" | last }}
{{- end }}
{{- end }}
