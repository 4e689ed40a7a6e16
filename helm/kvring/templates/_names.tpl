{{/* Names and labels of the chart's objects. */}}

{{- define "kvring.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Short: a StatefulSet's pods carry its name and a revision's hash in a label of 63 characters. */}}
{{- define "kvring.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kvring.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvring.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "kvring.router" -}}{{ include "kvring.fullname" . }}-router{{- end }}

{{- define "kvring.replica" -}}{{ include "kvring.fullname" . }}-replica{{- end }}

{{- define "kvring.picker" -}}{{ include "kvring.fullname" . }}-picker{{- end }}

{{- define "kvring.control" -}}{{ include "kvring.fullname" . }}-control{{- end }}

{{/* Takes (list root component). Pickers share the routers' account, since they look for the same replicas. */}}
{{- define "kvring.account" -}}
{{- $root := index . 0 -}}
{{- $component := ternary "replica" "router" (eq (index . 1) "replica") -}}
{{- $account := (get $root.Values $component).serviceAccount -}}
{{- if $account.create -}}
{{- default (include (printf "kvring.%s" $component) $root) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end }}

{{/* Takes (list root component). Never more than these: selectors cannot be changed later. */}}
{{- define "kvring.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "kvring.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "kvring.labels" -}}
{{- $root := index . 0 -}}
{{ include "kvring.selector" . }}
app.kubernetes.io/part-of: kvring
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Takes (list root component name): what every object begins with. */}}
{{- define "kvring.metadata" -}}
name: {{ index . 2 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "kvring.labels" (list (index . 0) (index . 1)) | nindent 2 }}
{{- end }}

{{/* The components that run, as JSON of their values. */}}
{{- define "kvring.components" -}}
{{- $found := dict "router" .Values.router -}}
{{- if .Values.replica.enabled }}{{ $_ := set $found "replica" .Values.replica }}{{ end -}}
{{- if .Values.picker.enabled }}{{ $_ := set $found "picker" .Values.picker }}{{ end -}}
{{- toRawJson $found -}}
{{- end }}

{{/* Takes (list root image). */}}
{{- define "kvring.image" -}}
{{- $image := index . 1 -}}
{{ printf "%s:%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) | quote }}
{{- end }}
