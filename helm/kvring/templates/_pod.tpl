{{/* What the pods of routers and replicas have in common. */}}

{{/* Takes (list root component values). */}}
{{- define "kvring.pod.common" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "kvring.serviceAccount" $root }}
automountServiceAccountToken: false
# Otherwise a Service called kvring-replica would set KVRING_REPLICA_PORT, which the program reads as its own.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kvring.selector" (list $root (index . 1)) | nindent 8 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
{{- with get $values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kvring.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Takes (list root variable): the secret seed, where there is one. */}}
{{- define "kvring.seed" -}}
{{- with (index . 0).Values.chainSeedSecret }}
{{- if .name }}
- name: {{ index $ 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (list configMap values). */}}
{{- define "kvring.mounts" -}}
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
