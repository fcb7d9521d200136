{{/*
Refuses an update strategy that the API server would refuse, and settings of the configuration that are the chart's to
say, unless they say the same: another value would be passed over in silence, or name a folder that is not mounted.
*/}}
{{- define "gpuplugin.checks" -}}
{{- $none := list "0" "0%" }}
{{- $surge := not (has (toString .Values.updateStrategy.maxSurge) $none) }}
{{- $unavailable := not (has (toString .Values.updateStrategy.maxUnavailable) $none) }}
{{- if not (or $surge $unavailable) }}
{{- fail "updateStrategy: maxSurge and maxUnavailable are both 0, so no pod could ever be updated; without a surge set maxUnavailable=1 as well" }}
{{- end }}
{{- if and $surge $unavailable }}
{{- fail "updateStrategy: Kubernetes takes only one of maxSurge and maxUnavailable; set the other to 0" }}
{{- end }}
{{- $host := .Values.hostPaths }}
{{- $ours := dict
  "flags.nvidiaDriverRoot" (list $host.driverRoot "hostPaths.driverRoot")
  "flags.nvidiaDevRoot" (list $host.devRoot "hostPaths.devRoot")
  "flags.plugin.containerDriverRoot" (list "/driver-root" "")
  "paths.kubelet" (list ($host.kubelet | trimSuffix "/") "hostPaths.kubelet")
  "paths.cdi" (list "/var/run/cdi" "hostPaths.cdi")
  "paths.state" (list "/var/lib/gpuplugin" "hostPaths.state")
  "paths.status" (list "/run/gpuplugin/own/status.sock" "")
  "node.name" (list "" "")
  "node.startupTaint" (list (ternary .Values.startupTaint.key "" .Values.startupTaint.enabled) "startupTaint")
  "profiles.folder" (list "" "profiles.files")
  "profiles.default" (list .Values.profiles.default "profiles.default")
}}
{{- range $file := prepend (values .Values.profiles.files) .Values.config }}
{{- range $key, $is := $ours }}
{{- $found := $file }}
{{- range splitList "." $key }}
{{- if kindIs "map" $found }}{{ $found = get $found . }}{{ else }}{{ $found = "" }}{{ end }}
{{- end }}
{{- if and $found (ne (toString $found) (toString (first $is))) }}
{{- $do := ternary "leave it out" (printf "set %s instead" (last $is)) (eq (last $is) "") }}
{{- fail (printf "config.%s: %q cannot be: the chart says where that is; %s" $key (toString $found) $do) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
