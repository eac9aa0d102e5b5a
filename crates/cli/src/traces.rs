//! OpenTelemetry: whether the environment names a collector, and with the feature `opentelemetry` the exporter to it.

#[cfg(feature = "opentelemetry")]
mod otlp;

#[cfg(feature = "opentelemetry")]
pub(crate) use otlp::start;

/// The variable of OpenTelemetry that names a collector. Without one nothing is sent.
pub(crate) fn endpoint() -> Option<&'static str> {
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .into_iter()
        .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
