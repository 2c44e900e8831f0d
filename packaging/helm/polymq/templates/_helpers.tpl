{{/* The name of everything in a release. */}}
{{- define "polymq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "polymq.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "polymq.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "polymq.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The ports of each protocol, without TLS and with it: PolyMQ's defaults. Their names are those of
     the ports of the container. */}}
{{- define "polymq.ports" -}}
mqtt: { plain: 1883, tls: 8883 }
websocket: { plain: 8083, tls: 8084 }
amqp: { plain: 5672, tls: 5671 }
http: { plain: 8080, tls: 8443 }
rocketmq: { plain: 10911, tls: 10913 }
names: { plain: 9876, tls: 9877 }
{{- end -}}

{{/* The open ports as a list: name, port and protocol of each. The name server has a port without
     TLS also where the others have none. */}}
{{- define "polymq.openPorts" -}}
{{- range $protocol, $ports := include "polymq.ports" . | fromYaml }}
{{- if (index $.Values.protocols $protocol).enabled }}
{{- if or (not $.Values.tls.only) (eq $protocol "names") }}
- { name: {{ $protocol }}, port: {{ int $ports.plain }}, protocol: {{ $protocol }} }
{{- end }}
{{- if $.Values.tls.secretName }}
- { name: {{ $protocol }}-tls, port: {{ int $ports.tls }}, protocol: {{ $protocol }} }
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The port of [metrics]. No service has it: Prometheus and the kubelet ask the pod itself. */}}
{{- define "polymq.metricsPort" -}}
9466
{{- end -}}
