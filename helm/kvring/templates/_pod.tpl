{{/* What the pods of routers, replicas and pickers have in common. */}}

{{/* Takes (list root component checksum): labels and annotations of its pods. */}}
{{- define "kvring.pod.metadata" -}}
{{- $root := index . 0 -}}
{{- $values := get $root.Values (index . 1) -}}
labels:
  # No versions here: a new chart alone must not restart pods, whose caches would be lost.
  {{- include "kvring.selector" (list $root (index . 1)) | nindent 2 }}
  app.kubernetes.io/part-of: kvring
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $checksum := index . 2 }}
{{- if or $checksum $values.podAnnotations }}
annotations:
  {{- with $checksum }}
  checksum/config: {{ . }}
  {{- end }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "kvring.pod.common" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := get $root.Values $component -}}
serviceAccountName: {{ include "kvring.account" . }}
# Only who asks for EndpointSlices has a token.
automountServiceAccountToken: {{ and (ne $component "replica") (ne (include "kvring.slices.namespace" $root) "") }}
# Otherwise a Service called kvring-replica would set KVRING_REPLICA_PORT, which the program reads as its own.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
{{- with $values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kvring.selector" . | nindent 8 }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "priorityClassName" "runtimeClassName" }}
{{- with get $values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- $tolerations := $values.tolerations }}
{{- with $values.gpu }}
{{- if .count }}
{{- $tolerations = append $tolerations (dict "key" .resource "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- end }}
{{- with $tolerations | uniq }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kvring.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Takes (list secret variable): one variable out of a Secret, where there is one. */}}
{{- define "kvring.secret" -}}
{{- with index . 0 }}
{{- if .name }}
- name: {{ index $ 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{/* For what reads the router's options. */}}
{{- define "kvring.router.secrets" -}}
{{- include "kvring.secret" (list .Values.chainSeedSecret "KVRING_CHAIN__SEED") }}
{{- include "kvring.secret" (list .Values.redisSecret "KVRING_REDIS__URL") }}
{{- end }}

{{- define "kvring.replica.secrets" -}}
{{- include "kvring.secret" (list .Values.chainSeedSecret "KVRING_REPLICA_CHAIN__SEED") }}
{{- if include "kvring.leases" . }}
{{- include "kvring.secret" (list .Values.redisSecret "KVRING_REPLICA_LEASE__REDIS") }}
# A pod listens everywhere; routers reach it here.
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: KVRING_REPLICA_LEASE__ADVERTISE_URL
  value: http://$(POD_IP):{{ .Values.replica.config.port }}
{{- end }}
{{- end }}

{{/* The ports of replicas that only routers use, as JSON: name to number. */}}
{{- define "kvring.replica.events" -}}
{{- $ports := dict -}}
{{- $events := default dict .Values.replica.config.events -}}
{{- if $events.enabled -}}
{{- range $name, $endpoint := dict "kv-events" (default "tcp://*:5557" $events.endpoint) "kv-replay" (default "" $events.replay_endpoint) -}}
{{- if regexMatch "^tcp://.*:[1-9][0-9]*$" $endpoint }}{{ $_ := set $ports $name (splitList ":" $endpoint | last | int) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toRawJson $ports -}}
{{- end }}

{{/* Ports of replicas that routers reach, as a NetworkPolicy names them. */}}
{{- define "kvring.replica.open" -}}
- {port: http, protocol: TCP}
{{- range $name, $port := include "kvring.replica.events" . | fromJson }}
- {port: {{ $name }}, protocol: TCP}
{{- end }}
{{- end }}

{{/* Takes (list configMap values). */}}
{{- define "kvring.mounts" -}}
# The whole directory: a single file would not follow changes of the ConfigMap.
- name: config
  mountPath: /etc/kvring
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- with (index . 1).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes (list configMap values). */}}
{{- define "kvring.volumes" -}}
- name: config
  configMap:
    name: {{ index . 0 }}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- with (index . 1).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes values: how many pods, unless something scales them. */}}
{{- define "kvring.count" -}}
{{- if not (default dict .autoscaling).kind -}}
replicas: {{ .replicas }}
{{- end }}
{{- end }}

{{/* Takes a dict of what listens to its port, in one pod: refuses two on one port. */}}
{{- define "kvring.apart" -}}
{{- $taken := dict -}}
{{- range $name := keys . | sortAlpha -}}
{{- $port := get $ $name | int | toString -}}
{{- if hasKey $taken $port -}}
{{- fail (printf "%s and %s are both port %s: a pod cannot listen there twice" (get $taken $port) $name $port) -}}
{{- end -}}
{{- $_ := set $taken $port $name -}}
{{- end -}}
{{- end }}
