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
