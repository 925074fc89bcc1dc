{{- define "weft.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- /* What every object of a component is labelled with. */}}
{{- define "weft.labels" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/part-of: weft
{{- end }}

{{- define "weft.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* client-go finds the API server by these two, which kubelet sets to the Service's. */}}
{{- define "weft.apiServer" -}}
{{- with .Values.apiServer }}
{{- if .host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .port | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the containers of OVN's databases have in common. */}}
{{- define "weft.ovnContainer" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
resources:
  {{- toYaml .Values.vpc.ovn.resources | nindent 2 }}
volumeMounts:
  - {name: run, mountPath: /run/ovn}
  - {name: database, mountPath: /var/lib/ovn}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- /* What the keys of a node's lease in a flannel network begin with: the agent derives it in the same way from --kube-annotation-prefix. */}}
{{- define "weft.flannelAnnotations" -}}
{{- $prefix := "flannel.alpha.coreos.com" }}
{{- range .Values.flannel.flags }}
{{- if regexMatch "^--?kube-annotation-prefix=" . }}
{{- $prefix = regexReplaceAll "^--?kube-annotation-prefix=" . "" }}
{{- end }}
{{- end }}
{{- $parts := splitList "/" $prefix }}
{{- first $parts }}/{{ with trimSuffix "-" (join "/" (rest $parts)) }}{{ . }}-{{ end }}
{{- end }}
