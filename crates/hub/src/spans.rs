//! Spans of the calls of the application's backend, and of those to it, with the context of W3C Trace Context. Without the feature
//! `opentelemetry` there are none.

/// The header fields that carry the context of a trace.
const FIELDS: [&str; 2] = ["traceparent", "tracestate"];

/// Whether a header field carries the context of a trace.
pub(crate) fn is_context(name: &str) -> bool {
    FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field))
}

#[cfg(feature = "opentelemetry")]
pub(crate) use enabled::Span;

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use disabled::Span;

#[cfg(feature = "opentelemetry")]
mod enabled {
    use std::collections::HashMap;

    use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
    use opentelemetry::{Context, global};
    use wireloom::Request;

    use super::is_context;

    /// A span of the tracer provider and the propagator that the application has set. It ends when it is dropped.
    pub(crate) struct Span(Context);

    impl Span {
        /// A call of the server API: `NAME METHOD`. It continues the trace of the caller.
        pub(crate) fn received(name: &str, method: &str, request: &Request) -> Self {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let fields = request.headers().filter(|(name, _)| is_context(name));
            let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), text(value))).collect();
            Self::start(format!("{name} {method}"), SpanKind::Server, &fields)
        }

        /// A call of an endpoint. It continues the trace of the client if its header fields are forwarded.
        pub(crate) fn sent(name: &str, headers: &[(String, String)]) -> Self {
            let fields = headers.iter().filter(|(name, _)| is_context(name));
            let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
            Self::start(format!("proxy {name}"), SpanKind::Client, &fields)
        }

        fn start(name: String, kind: SpanKind, fields: &HashMap<String, String>) -> Self {
            let parent = global::get_text_map_propagator(|propagator| {
                propagator.extract_with_context(&Context::new(), fields)
            });
            let tracer = global::tracer("wireloom-hub");
            let span = tracer.build_with_context(tracer.span_builder(name).with_kind(kind), &parent);
            Self(parent.with_span(span))
        }

        /// The header fields that continue the trace; none if nothing is traced.
        pub(crate) fn context(&self) -> Vec<(String, String)> {
            let mut fields = HashMap::new();
            global::get_text_map_propagator(|propagator| propagator.inject_context(&self.0, &mut fields));
            // An empty state says nothing.
            fields.into_iter().filter(|(name, value)| is_context(name) && !value.is_empty()).collect()
        }

        /// Marks it as failed.
        pub(crate) fn fail(&self, reason: &str) {
            self.0.span().set_status(Status::error(reason.to_owned()));
        }
    }
}

#[cfg(not(feature = "opentelemetry"))]
mod disabled {
    use wireloom::Request;

    pub(crate) struct Span;

    impl Span {
        pub(crate) fn received(_: &str, _: &str, _: &Request) -> Self {
            Self
        }

        pub(crate) fn sent(_: &str, _: &[(String, String)]) -> Self {
            Self
        }

        #[expect(clippy::unused_self, reason = "as with the feature")]
        pub(crate) fn context(&self) -> Vec<(String, String)> {
            Vec::new()
        }

        #[expect(clippy::unused_self, reason = "as with the feature")]
        pub(crate) fn fail(&self, _: &str) {}
    }
}
