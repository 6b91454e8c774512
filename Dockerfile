FROM golang:1.26 AS build
LABEL farandole.stage=build
WORKDIR /src
# The modules are a layer of their own: it changes only when they do.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
# A named volume mounted over an empty directory of the image takes over its owner.
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w -X main.version=${VERSION}" -o /out/farandole ./cmd/farandole && \
    mkdir /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /out/data /data
COPY --from=build /out/farandole /farandole
USER 65532:65532
ENTRYPOINT ["/farandole"]
