{{- define "streamlearn.container" }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}
{{- define "streamlearn.environment" }}
- {name: HOME, value: /tmp}
- {name: STREAMLEARN_CACHE, value: /var/cache/streamlearn}
- {name: STREAMLEARN_PULSE, value: /tmp/pulse}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- end }}
{{- define "streamlearn.mounts" }}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/streamlearn}
- name: state
  {{- if $.Values.application }}
  mountPath: /srv/app
  {{- else }}
  mountPath: /srv/app/.streamlearn
  {{- end }}
- {name: app, mountPath: /srv/app/app.toml, subPath: app.toml, readOnly: true}
{{- range $key, $_ := $.Values.application }}
- {name: app, mountPath: "/srv/app/{{ $key }}", subPath: "{{ $key }}", readOnly: true}
{{- end }}
- {name: tokens, mountPath: /run/streamlearn/tokens, readOnly: true}
{{- with $.Values.mounts }}{{ toYaml . | nindent 0 }}{{- end }}
{{- end }}
{{- define "streamlearn.pod" }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- if $.Values.pull_secret }}
imagePullSecrets: [{name: {{ $.Values.pull_secret | toJson }}}]
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "streamlearn.volumes" }}
- {name: tmp, emptyDir: {}}
- {name: app, configMap: {name: "{{ $.Release.Name }}-app"}}
{{- with $.Values.volumes }}{{ toYaml . | nindent 0 }}{{- end }}
{{- end }}
