#!/usr/bin/env bash
# Builds an image of streamlearn: build.sh KIND WHEEL, where KIND is node, train, ingest, access or up. It asks no image
# registry: the base is made of Debian's packages. It needs Linux, root, buildah, debootstrap and uv; the image has the
# processor of this machine. KIND decides what is installed, and the verb that runs unless another one is named.
# PRISM=FILE puts that Prism into the image, EXTRAS=NAME,... further extras, such as s3.
set -euo pipefail

SUITE=bookworm PYTHON=3.11 USER_ID=10001
PACKAGES=/usr/local/lib/python$PYTHON/dist-packages # where Debian's Python looks

fail() { printf 'error: %s\nhelp: %s\n' "$1" "$2" >&2; exit 2; }

[ "$#" -eq 2 ] || fail "$# words, and KIND and WHEEL are needed" "packaging/container/build.sh node dist/streamlearn-*.whl"
case "$1" in
  node) extras=serve verb=serve ;;
  train) extras=train verb=train ;;
  ingest) extras=ingest verb=ingest ;;
  access) extras=access verb="access --run --out /tmp/access --wait 600" ;;
  up) extras=ingest,serve verb=up ;; # TensorFlow for processors learns too
  *) fail "$1 is not a kind of image" "the kinds are node, train, ingest, access and up" ;;
esac
[ -f "$2" ] || fail "the wheel $2 does not exist" "make wheel"
[ "$(id -u)" -eq 0 ] || fail "the files of a base belong to root, and this is user $(id -u)" "run it as root"
for tool in buildah debootstrap uv; do
  command -v "$tool" >/dev/null || fail "$tool is not installed" "apt-get install buildah debootstrap; pip install uv"
done
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$2")

container=$(buildah from scratch)
trap 'buildah rm "$container" >/dev/null' EXIT
root=$(buildah mount "$container")
debootstrap --variant=minbase --include=python3,tini "$SUITE" "$root" >&2
# The versions that are tested.
uv pip install --quiet --target "$root$PACKAGES" --python-version "$PYTHON" --python-platform "$(uname -m)-manylinux_2_36" \
  --constraint "$here/../../requirements.lock" "streamlearn[$extras${EXTRAS:+,$EXTRAS}] @ file://$wheel"
rm -rf "$root$PACKAGES/bin" "$root$PACKAGES/tensorflow/include" # headers, to compile against
[ -z "${PRISM:-}" ] || install -m 755 "$PRISM" "$root/usr/local/bin/prism"
printf '#!/bin/sh\nexec python3 -m streamlearn "$@"\n' >"$root/usr/local/bin/streamlearn"
chmod 755 "$root/usr/local/bin/streamlearn"
ln -s /usr/bin/python3 "$root/usr/local/bin/python"
printf 'streamlearn:x:%s:%s::/tmp:/usr/sbin/nologin\n' $USER_ID $USER_ID >>"$root/etc/passwd"
printf 'streamlearn:x:%s:\n' $USER_ID >>"$root/etc/group"
install -d -o $USER_ID -g $USER_ID "$root/srv/app" "$root/var/cache/streamlearn"
# Else each process compiles all that it imports, since it may not write here.
buildah run --isolation chroot "$container" -- python3 -m compileall -q -j 0 /usr/lib/python3 /usr/lib/python$PYTHON "$PACKAGES" >&2
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/* "$root"/usr/share/{man,locale,info}/*
find "$root/usr/share/doc" -type f ! -name copyright -delete

# A process writes its state into the pulse, below /tmp: that and the cache are volumes, so that the root may be read-only.
buildah config --user $USER_ID:$USER_ID --workingdir /srv --port 8000 --port 8001 \
  --entrypoint '["tini", "--", "streamlearn"]' --cmd "$verb /srv/app" \
  --env PATH=/usr/local/bin:/usr/bin:/bin --env HOME=/tmp --env STREAMLEARN_CACHE=/var/cache/streamlearn --env STREAMLEARN_PULSE=/tmp/pulse \
  --volume /tmp --volume /var/cache/streamlearn \
  --healthcheck 'CMD streamlearn probe' --healthcheck-interval 30s --healthcheck-timeout 20s \
  --healthcheck-start-period 300s --healthcheck-retries 3 "$container"
before=$(buildah images --quiet "localhost/streamlearn:$1" 2>/dev/null || true)
buildah commit --quiet --format docker "$container" "localhost/streamlearn:$1"
[ -z "$before" ] || buildah rmi "$before" >/dev/null
