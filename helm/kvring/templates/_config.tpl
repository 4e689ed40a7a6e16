{{/* The options of both programs: values as they stand, completed by what only the chart knows, as TOML. */}}

{{- define "kvring.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toRawJson . }}{{ end -}}
{{- end }}

{{/* One value. Strings of JSON are strings of TOML too; tables are written inline. */}}
{{- define "kvring.toml.value" -}}
{{- if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $key := keys . | sortAlpha -}}
{{- $value := get $ $key -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $pairs = append $pairs (printf "%s = %s" (include "kvring.toml.key" $key) (include "kvring.toml.value" $value)) -}}
{{- end -}}
{{- end -}}
{{- if $pairs }}{ {{ join ", " $pairs }} }{{ else }}{}{{ end -}}
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . }}{{ $items = append $items (include "kvring.toml.value" .) }}{{ end -}}
[{{ join ", " $items }}]
{{- else -}}
{{- toRawJson . -}}
{{- end -}}
{{- end }}

{{/* A whole file: plain values ahead of the tables, as TOML wants it. */}}
{{- define "kvring.toml" -}}
{{- range $key := keys . | sortAlpha }}
{{- $value := get $ $key }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "kvring.toml.key" $key }} = {{ include "kvring.toml.value" $value }}
{{- end }}
{{- end }}
{{- range $key := keys . | sortAlpha }}
{{- $value := get $ $key }}
{{- if kindIs "map" $value }}

[{{ include "kvring.toml.key" $key }}]
{{- range $inner := keys $value | sortAlpha }}
{{- $item := get $value $inner }}
{{- if not (kindIs "invalid" $item) }}
{{ include "kvring.toml.key" $inner }} = {{ include "kvring.toml.value" $item }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The fleet's options as JSON, with the chart's own replicas in them where values tell no other way to them. */}}
{{- define "kvring.fleet" -}}
{{- $fleet := deepCopy (default dict .Values.router.config.fleet) -}}
{{- $dns := default dict $fleet.dns -}}
{{- $slices := default dict $fleet.kubernetes -}}
{{- if .Values.replica.enabled -}}
{{- if or $dns.host $slices.service -}}
{{- else if eq .Values.router.discovery "kubernetes" -}}
{{- $_ := set $fleet "kubernetes" (merge (dict "service" (include "kvring.replica" .) "port" "http") $slices) -}}
{{- else if eq .Values.router.discovery "dns" -}}
{{- /* The short name: the first search domain of a pod's resolver finds it, whatever the cluster's domain. */ -}}
{{- $own := dict "host" (include "kvring.replica" .) "port" .Values.replica.config.port -}}
{{- $_ := set $fleet "dns" (merge $own $dns) -}}
{{- else if not (or $fleet.replicas (dig "leases" "enabled" false $fleet)) -}}
{{- fail "router.discovery is none and router.config.fleet tells no other way to the replicas" -}}
{{- end -}}
{{- else if not (or $dns.host $slices.service $fleet.replicas (dig "leases" "enabled" false $fleet)) -}}
{{- fail "replica.enabled is false and router.config.fleet names no replicas, kubernetes.service, dns.host or leases: nobody would answer" -}}
{{- end -}}
{{- toRawJson $fleet -}}
{{- end }}

{{/* Takes (list url port): the port that the URL tells, or that one. */}}
{{- define "kvring.port" -}}
{{- $told := regexFind ":[0-9]+$" (urlParse (index . 0)).host -}}
{{- if $told }}{{ trimPrefix ":" $told }}{{ else }}{{ index . 1 }}{{ end -}}
{{- end }}

{{/* Where EndpointSlices are read: a namespace, or nothing. */}}
{{- define "kvring.slices.namespace" -}}
{{- $slices := default dict (include "kvring.fleet" . | fromJson).kubernetes -}}
{{- if $slices.service }}{{ default .Release.Namespace $slices.namespace }}{{ end -}}
{{- end }}

{{- define "kvring.router.toml" -}}
{{- $config := deepCopy .Values.router.config -}}
{{- with include "kvring.fleet" . | fromJson -}}
{{- $_ := set $config "fleet" . -}}
{{- end -}}
{{- $own := .Values.replica.config -}}
{{- $models := default dict $config.models -}}
{{- if and .Values.replica.enabled (eq $own.model_directory "/opt/models/smollm2-135m-instruct") (not (hasKey $models $own.model)) -}}
{{- $tokenizer := dict "tokenizer_directory" "/opt/tokenizers/smollm2-135m-instruct" -}}
{{- $_ := set $config "models" (merge (dict $own.model $tokenizer) $models) -}}
{{- end -}}
{{- include "kvring.toml" $config | trim -}}
{{- end }}

{{- define "kvring.replica.toml" -}}
{{- $config := deepCopy .Values.replica.config -}}
{{- with .Values.router.config.chain -}}
{{- $_ := set $config "chain" . -}}
{{- end -}}
{{- with dig "redis" "group" "" .Values.router.config -}}
{{- $_ := set $config "lease" (merge (dict "group" .) (default dict $config.lease)) -}}
{{- end -}}
{{- include "kvring.toml" $config | trim -}}
{{- end }}

{{/* "true" where replicas hold leases that routers read. */}}
{{- define "kvring.leases" -}}
{{- if dig "fleet" "leases" "enabled" false .Values.router.config }}true{{ end -}}
{{- end }}

{{/* The name of the port with probes and metrics. */}}
{{- define "kvring.router.control" -}}
{{- if kindIs "invalid" (default dict .Values.router.config.control).port }}http{{ else }}control{{ end -}}
{{- end }}
