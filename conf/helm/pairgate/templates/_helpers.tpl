{{/* The labels of a process: call with a dict of root and process. */}}
{{- define "pairgate.labels" -}}
app.kubernetes.io/name: pairgate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .process }}
{{- end }}

{{- define "pairgate.name" -}}
{{ .root.Release.Name }}{{ if ne .process "gateway" }}-{{ .process }}{{ end }}
{{- end }}

{{/* Everything of a pod besides its container's command, lifecycle and ports. */}}
{{- define "pairgate.pod" -}}
automountServiceAccountToken: false
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "pairgate.labels" . | nindent 8 }}
volumes:
  - name: config
    configMap: {name: {{ .root.Release.Name }}}
  # Outlives the process, not the pod: a gateway that restarts in an outage diverts at once.
  - name: state
    emptyDir: {}
  - name: temporary
    emptyDir: {medium: Memory, sizeLimit: 64Mi}
  {{- with .root.Values.tlsSecretName }}
  - name: tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
{{- end }}

{{/* The container, without its command, lifecycle and ports. */}}
{{- define "pairgate.container" -}}
name: pairgate
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
workingDir: /etc/pairgate   # `pairgate status` and the others find the configuration
envFrom:
  - secretRef: {name: {{ .root.Values.secretName }}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: config, mountPath: /etc/pairgate, readOnly: true}
  - {name: state, mountPath: /var/lib/pairgate}
  - {name: temporary, mountPath: /tmp}
  {{- if .root.Values.tlsSecretName }}
  - {name: tls, mountPath: /etc/pairgate-tls, readOnly: true}
  {{- end }}
# A dead primary fails none of them: sends still succeed.
startupProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}
