//! Spans that do not reach the collector are counted, and logged at most once a second: the SDK drops them silently.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    OTEL_BSP_MAX_QUEUE_SIZE, OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT, Span, SpanData, SpanExporter, SpanProcessor,
};

/// The time between two lines of the log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Losses {
    /// The maximum number of spans that wait for the exporter.
    pub(super) queue_max: usize,
    queued: AtomicUsize,
    /// The number of spans of the batch that is being exported.
    exporting: AtomicUsize,
    /// Lost and not logged yet.
    lost: AtomicU64,
    logged_at: Mutex<Option<Instant>>,
    /// Why the last request failed: the error of the exporter does not say it.
    cause: Mutex<Option<String>>,
}

impl Default for Losses {
    fn default() -> Self {
        let queue_max = std::env::var(OTEL_BSP_MAX_QUEUE_SIZE).ok().and_then(|max| max.parse().ok());
        let queue_max = queue_max.unwrap_or(OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT);
        let (queued, exporting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (lost, logged_at, cause) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Self { queue_max, queued, exporting, lost, logged_at, cause }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Losses {
    /// A request to the collector has failed.
    pub(super) fn set_cause(&self, cause: &dyn Display) {
        *lock(&self.cause) = Some(cause.to_string());
    }

    fn add(&self, count: usize, reason: &dyn Display) {
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        let mut logged_at = lock(&self.logged_at);
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged_at = Some(Instant::now());
            drop(logged_at);
            let spans = self.lost.swap(0, Ordering::Relaxed);
            tracing::warn!(spans, %reason, "spans were lost");
        }
    }

    /// Logs what has not been logged, and what has not left, as the process ends.
    pub(super) fn log(&self) {
        let left = self.queued.load(Ordering::Relaxed) + self.exporting.load(Ordering::Relaxed);
        let spans = self.lost.swap(0, Ordering::Relaxed) + left as u64;
        if spans > 0 {
            tracing::warn!(spans, "spans were lost");
        }
    }
}

/// Counts the spans that cannot be exported.
#[derive(Debug)]
pub(super) struct CountedExporter<E> {
    pub(super) exporter: E,
    pub(super) losses: Arc<Losses>,
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.losses.exporting.store(count, Ordering::Relaxed);
        self.losses.queued.fetch_sub(count, Ordering::Relaxed);
        let exported = self.exporter.export(batch).await;
        self.losses.exporting.store(0, Ordering::Relaxed);
        if let Err(error) = &exported {
            let cause = lock(&self.losses.cause).take();
            self.losses.add(count, &cause.unwrap_or_else(|| error.to_string()));
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Counts the spans for which the queue has no room.
#[derive(Debug)]
pub(super) struct CountedProcessor<P> {
    pub(super) processor: P,
    pub(super) losses: Arc<Losses>,
}

impl<P: SpanProcessor> SpanProcessor for CountedProcessor<P> {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.processor.on_start(span, cx);
    }

    fn on_end(&self, span: SpanData) {
        let Losses { queued, queue_max, .. } = &*self.losses;
        if queued.fetch_add(1, Ordering::Relaxed) < *queue_max {
            return self.processor.on_end(span);
        }
        queued.fetch_sub(1, Ordering::Relaxed);
        self.losses.add(1, &"the queue is full");
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}
