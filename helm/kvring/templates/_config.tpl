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

{{- define "kvring.router.toml" -}}
{{- $config := deepCopy .Values.router.config -}}
{{- $fleet := default dict $config.fleet -}}
{{- $dns := default dict $fleet.dns -}}
{{- if .Values.replica.enabled -}}
{{- $own := .Values.replica.config -}}
{{- if not $dns.host -}}
{{- /* The short name: the first search domain of a pod's resolver finds it, whatever the cluster's domain. */ -}}
{{- $dns = merge (dict "host" (include "kvring.replica" .) "port" $own.port) $dns -}}
{{- $_ := set $config "fleet" (merge (dict "dns" $dns) $fleet) -}}
{{- end -}}
{{- $models := default dict $config.models -}}
{{- if and (eq $own.model_directory "/opt/models/smollm2-135m-instruct") (not (hasKey $models $own.model)) -}}
{{- $tokenizer := dict "tokenizer_directory" "/opt/tokenizers/smollm2-135m-instruct" -}}
{{- $_ := set $config "models" (merge (dict $own.model $tokenizer) $models) -}}
{{- end -}}
{{- else if not (or $dns.host $fleet.replicas) -}}
{{- fail "replica.enabled is false and router.config.fleet names neither replicas nor dns.host: nobody would answer" -}}
{{- end -}}
{{- include "kvring.toml" $config | trim -}}
{{- end }}

{{- define "kvring.replica.toml" -}}
{{- $config := deepCopy .Values.replica.config -}}
{{- with .Values.router.config.chain -}}
{{- $_ := set $config "chain" . -}}
{{- end -}}
{{- include "kvring.toml" $config | trim -}}
{{- end }}
