# The command as an image: one static binary and the root certificates, 15 MB, without a shell, run by user 65532.
#   docker build -t wireloom .
#   docker run --rm -p 8080:8080 wireloom
FROM rust:1.95-slim AS build
# Versions of packages are not pinned: Debian keeps only the newest.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
ARG WIRELOOM_COMMIT=
# ring is the only C.
ENV CC_x86_64_unknown_linux_musl=musl-gcc CC_aarch64_unknown_linux_musl=musl-gcc \
    CARGO_PROFILE_DIST_DEBUG=0 CARGO_PROFILE_DIST_STRIP=symbols
RUN target="$(uname -m)-unknown-linux-musl" \
    && rustup target add "$target" \
    && cargo build --locked --profile dist -p wireloom-cli --target "$target" \
    && mkdir -p /image/data \
    && cp "target/$target/dist/wireloom" /image/

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image/wireloom /usr/bin/wireloom
# Where --data /data keeps histories: mount a volume there.
COPY --from=build --chown=65532:65532 /image/data /data
USER 65532:65532
EXPOSE 8080 8443
HEALTHCHECK --interval=10s --timeout=4s CMD ["/usr/bin/wireloom", "connect", "http://127.0.0.1:8080/livez", "--timeout", "3"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/wireloom"]
CMD ["serve", "--listen", ":8080"]
