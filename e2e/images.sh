#!/usr/bin/env bash
# Builds stand-ins for the two public base images that Dockerfile and
# docker-compose.yml name, under the same tags, for machines that cannot pull:
#
#   golang:1.26        this machine's Go toolchain, busybox, and the modules of
#                      go.mod (a build container has no network)
#   nats:2.15-alpine   nats-server as pinned in go.mod, and busybox
#
# An image that is already there is left alone: a real one always, a stand-in
# while its label tells that what went into it has not changed. Needs Docker, Go
# and a static busybox.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly label=farandole.standin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

busybox=$(command -v busybox) || { echo "images.sh: busybox is missing (Debian: busybox-static)" >&2; exit 1; }

digest() { cat "$@" "$busybox" e2e/images.sh <(go version) | sha256sum | cut -c1-16; }

# current IMAGE DIGEST: nothing is to be built.
current() {
	local have
	have=$(docker image inspect --format "{{ index .Config.Labels \"$label\" }}" "$1" 2>/dev/null) || return 1
	[[ $have == "" || $have == "<no value>" || $have == "$2" ]]
}

# skeleton DIR: a root file system with a shell and the usual tools.
skeleton() {
	mkdir -p "$1"/{bin,tmp,etc/ssl/certs,root,usr/local/bin}
	chmod 1777 "$1/tmp"
	cp "$busybox" "$1/bin/busybox"
	local applet
	for applet in $("$busybox" --list); do [[ $applet == busybox ]] || ln -s busybox "$1/bin/$applet"; done
	cp -L /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
	echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
}

# import DIR IMAGE DIGEST OPTION...: the image made of DIR, instead of an older one.
import() {
	local dir=$1 image=$2 digest=$3 old
	shift 3
	old=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null) || old=
	tar -C "$dir" --owner=0 --group=0 --numeric-owner -c . |
		docker import --change "LABEL $label=$digest" "$@" - "$image" >/dev/null
	if [[ -n $old ]]; then docker rmi "$old" >/dev/null 2>&1 || true; fi # in use: it stays
	echo "images.sh: built $image ($digest)"
}

golang() {
	local image=golang:1.26 digest proxy modules root=$work/golang
	digest=$(digest go.mod go.sum)
	current "$image" "$digest" && return
	skeleton "$root"
	mkdir -p "$root/usr/local/go" "$root/go/pkg/mod"
	tar -C "$(go env GOROOT)" --exclude=./test --exclude=./api --exclude=./doc --exclude='*_test.go' --exclude=testdata -c . |
		tar -C "$root/usr/local/go" -x
	# A module cache of its own, filled from this machine's, holds what go.mod needs and no more.
	go mod download
	proxy=file://$(go env GOMODCACHE)/cache/download
	export GOMODCACHE=$root/go/pkg/mod GOFLAGS=-modcacherw GOPROXY=$proxy GOSUMDB=off
	go mod download
	# What the program imports is compiled once, here, and not in each build of its image.
	modules=$(go list -deps -f '{{ with .Module }}{{ if not .Main }}{{ $.ImportPath }}{{ end }}{{ end }}' ./cmd/farandole)
	CGO_ENABLED=0 GOCACHE=$root/root/.cache/go-build go build -trimpath $modules
	import "$root" "$image" "$digest" \
		--change 'ENV PATH=/usr/local/go/bin:/go/bin:/bin GOPATH=/go GOTOOLCHAIN=local GOPROXY=off' \
		--change 'WORKDIR /go'
}

nats() {
	local image=nats:2.15-alpine digest root=$work/nats
	digest=$(digest <(grep nats-io/nats-server go.sum))
	current "$image" "$digest" && return
	skeleton "$root"
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$root/usr/local/bin/nats-server" github.com/nats-io/nats-server/v2
	# As the real image's: flags alone mean nats-server.
	cat >"$root/usr/local/bin/docker-entrypoint.sh" <<-'SH'
		#!/bin/sh
		set -e
		if [ "$#" -eq 0 ] || [ "${1#-}" != "$1" ]; then set -- nats-server "$@"; fi
		exec "$@"
	SH
	chmod 755 "$root/usr/local/bin/docker-entrypoint.sh"
	import "$root" "$image" "$digest" \
		--change 'ENV PATH=/usr/local/bin:/bin' \
		--change 'ENTRYPOINT ["docker-entrypoint.sh"]' \
		--change 'CMD ["nats-server"]'
}

(golang)
(nats)
