#!/usr/bin/env bash
# Builds stand-ins for the public base images that Dockerfile and
# docker-compose.yml name, under the same tags, for machines that cannot pull:
#
#   golang:1.26         this machine's Go toolchain, busybox, and the modules of
#                       go.mod (a build container has no network)
#   nats:2.15-alpine    nats-server as pinned in go.mod, and busybox
#   postgres:17-alpine  this machine's Postgres, whatever its version, and busybox
#
# An image that is already there is left alone: a real one always, a stand-in
# while its label tells that what went into it has not changed. What was compiled
# is kept in ~/.cache/farandole-images, so that only the first time takes minutes.
# Needs Docker, Go, Postgres and a static busybox.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly label=farandole.standin
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/farandole-images
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# say TEXT: how far the image is, with the seconds since the start.
say() { printf 'images.sh: %3ds %s\n' "$SECONDS" "$image: $1"; }

missing() { echo "images.sh: $1 is missing (Debian: $2)" >&2; exit 1; }

command -v docker >/dev/null || missing docker docker.io
docker info >/dev/null 2>&1 || { echo 'images.sh: the Docker daemon does not answer: start it' >&2; exit 1; }
busybox=$(command -v busybox) || missing busybox busybox-static

digest() { cat "$@" "$busybox" e2e/images.sh <(go version) | sha256sum | cut -c1-16; }

# current IMAGE DIGEST: nothing is to be built.
current() {
	local have
	have=$(docker image inspect --format "{{ index .Config.Labels \"$label\" }}" "$1" 2>/dev/null) || return 1
	[[ $have == "" || $have == "<no value>" || $have == "$2" ]] && say 'is there'
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

# import DIR IMAGE DIGEST OPTION...: the image made of DIR, instead of an older
# one. All is root's, but for what lies in DIR.N: that is user N's.
import() {
	local dir=$1 image=$2 digest=$3 old users
	shift 3
	old=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null) || old=
	tar -C "$dir" --owner=0 --group=0 --numeric-owner -cf "$dir.tar" .
	for users in "$dir".[0-9]*; do
		[[ ! -d $users ]] || tar -C "$users" --owner="${users##*.}" --group="${users##*.}" --numeric-owner -rf "$dir.tar" $(ls "$users")
	done
	docker import --change "LABEL $label=$digest" "$@" "$dir.tar" "$image" >/dev/null
	if [[ -n $old ]]; then docker rmi "$old" >/dev/null 2>&1 || true; fi # in use: it stays
	say "built ($digest)"
}

# counted: a line for each 100 packages that go build -v names; other lines as they are.
counted() {
	local line n=0
	while IFS= read -r line; do
		if [[ $line =~ ^[A-Za-z0-9._~/-]+$ ]]; then
			((++n % 100)) || say "$n compiled"
		else
			printf '%s\n' "$line" >&2
		fi
	done
	say "$n compiled, the others were"
}

golang() {
	local image=golang:1.26 digest proxy modules root=$work/golang
	digest=$(digest go.mod go.sum)
	current "$image" "$digest" && return
	say 'copying the toolchain'
	skeleton "$root"
	mkdir -p "$root/usr/local/go" "$root/go/pkg/mod" "$root/root/.cache" "$cache"
	tar -C "$(go env GOROOT)" --exclude=./test --exclude=./api --exclude=./doc --exclude='*_test.go' --exclude=testdata -c . |
		tar -C "$root/usr/local/go" -x
	# A module cache of its own, filled from this machine's, holds what go.mod needs and no more.
	say 'downloading modules'
	go mod download
	proxy=file://$(go env GOMODCACHE)/cache/download
	export GOMODCACHE=$root/go/pkg/mod GOFLAGS=-modcacherw GOPROXY=$proxy GOSUMDB=off
	go mod download
	# What the program imports is compiled once, here, and not in each build of its image.
	modules=$(go list -deps -f '{{ with .Module }}{{ if not .Main }}{{ $.ImportPath }}{{ end }}{{ end }}' ./cmd/farandole)
	say "compiling $(wc -w <<<"$modules") packages and what they import"
	CGO_ENABLED=0 GOCACHE=$cache/go-build go build -v -trimpath $modules 2>&1 | counted
	cp -r "$cache/go-build" "$root/root/.cache/"
	say 'importing'
	import "$root" "$image" "$digest" \
		--change 'ENV PATH=/usr/local/go/bin:/go/bin:/bin GOPATH=/go GOTOOLCHAIN=local GOPROXY=off' \
		--change 'WORKDIR /go'
}

nats() {
	local image=nats:2.15-alpine digest root=$work/nats
	digest=$(digest <(grep nats-io/nats-server go.sum))
	current "$image" "$digest" && return
	say 'compiling'
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

postgres() {
	local image=postgres:17-alpine digest bin share root=$work/postgres
	# As internal/testkit/pg finds it: the one in PATH, or else the newest of Debian's.
	bin=$(type -P postgres) || bin=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
	bin=$(dirname "$(readlink -f "$bin")")
	[[ -x $bin/postgres ]] || missing Postgres postgresql
	digest=$(digest <("$bin/postgres" --version))
	current "$image" "$digest" && return
	say "copying $bin"
	skeleton "$root"
	# It looks for its files where it was built to.
	share=$("$bin/pg_config" --sharedir)
	tar -C / --exclude='llvmjit*' --exclude=bitcode --exclude=pgxs --exclude=man -c \
		"${bin#/}" "${share#/}" "$(realpath --relative-to=/ "$("$bin/pg_config" --pkglibdir)")" usr/share/zoneinfo |
		tar -C "$root" -x
	find "$root$bin" "$root$("$bin/pg_config" --pkglibdir)" -type f -exec ldd {} + 2>/dev/null |
		grep -o '/[^ ]*\.so[^ ]*' | grep -v ':$' | sort -u | while read -r lib; do
		mkdir -p "$root${lib%/*}"
		cp -L "$lib" "$root$lib"
	done
	# Its user, and the two places that this user writes to, as in the real one.
	echo 'postgres:x:70:70::/var/lib/postgresql:/bin/sh' >>"$root/etc/passwd"
	mkdir -p "$root.70"/var/{lib/postgresql/data,run/postgresql}
	chmod 1777 "$root.70"/var/{lib/postgresql/data,run/postgresql}
	cat >"$root/usr/local/bin/docker-entrypoint.sh" <<-'SH'
		#!/bin/sh
		# What is used of the real one's.
		set -e
		if [ "$#" -eq 0 ] || [ "${1#-}" != "$1" ]; then set -- postgres "$@"; fi
		if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
			user=${POSTGRES_USER:-postgres}
			cat "${POSTGRES_PASSWORD_FILE:?must be set}" |
				initdb --username="$user" --pwfile=/dev/stdin --encoding=UTF8 --no-locale --auth-local=trust --auth-host=trust
			echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
			echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
			if [ "${POSTGRES_DB:-$user}" != postgres ]; then
				echo "CREATE DATABASE \"${POSTGRES_DB:-$user}\"" | postgres --single postgres
			fi
		fi
		exec "$@"
	SH
	chmod 755 "$root/usr/local/bin/docker-entrypoint.sh"
	import "$root" "$image" "$digest" \
		--change "ENV PATH=/usr/local/bin:$bin:/bin PGDATA=/var/lib/postgresql/data" \
		--change 'USER 70:70' \
		--change 'VOLUME /var/lib/postgresql/data' \
		--change 'ENTRYPOINT ["docker-entrypoint.sh"]' \
		--change 'CMD ["postgres"]'
}

(golang)
(nats)
(postgres)
