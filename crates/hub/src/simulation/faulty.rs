//! An engine that fails and delays at random, and whose deliveries are lost and repeated.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use fastrand::Rng;

use super::model::{Asked, Model};
use crate::config::RecoveryMode;
use crate::engine::{
    Control, Delivery, Engine, EngineError, EngineFuture, Maintaining, Membership, PendingDelivery,
};
use crate::history::{History, HistoryQuery, Position, Recovery, Retention};
use crate::protocol::{ClientInfo, Publication};
use crate::shards::lock;

/// How often something fails, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    failure: u32,
    delay: u32,
    loss: u32,
    repetition: u32,
}

impl Faults {
    pub(super) const NONE: Self = Self { failure: 0, delay: 0, loss: 0, repetition: 0 };
    pub(super) const MANY: Self = Self { failure: 5, delay: 30, loss: 3, repetition: 3 };
    pub(super) const SLOW: Self = Self { delay: 100, ..Self::NONE };
}

/// An engine that fails and delays at random.
pub(super) struct FaultyEngine<E> {
    inner: E,
    model: Arc<Model>,
    chance: Arc<Chance>,
    delivery: OnceLock<Arc<LossyDelivery>>,
    started: tokio::time::Instant,
}

struct Chance {
    rng: Mutex<Rng>,
    faults: Arc<Mutex<Faults>>,
}

impl Chance {
    fn happens(&self, percent: impl FnOnce(&Faults) -> u32) -> bool {
        let percent = percent(&lock(&self.faults));
        lock(&self.rng).u32(..100) < percent
    }

    async fn delay(&self) {
        if self.happens(|faults| faults.delay) {
            let delay = lock(&self.rng).u64(1..500);
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
    }

    async fn disturb(&self) -> Result<(), EngineError> {
        self.delay().await;
        if self.happens(|faults| faults.failure) {
            return Err(EngineError::Unavailable("by chance".into()));
        }
        Ok(())
    }
}

struct LossyDelivery {
    hub: Weak<dyn Delivery>,
    chance: Arc<Chance>,
}

impl Delivery for LossyDelivery {
    fn deliver_publication(
        &self,
        channel: &str,
        epoch: &str,
        previous: u64,
        publication: &Arc<Publication>,
    ) -> PendingDelivery {
        let Some(hub) = self.hub.upgrade() else { return PendingDelivery::default() };
        if self.chance.happens(|faults| faults.loss) {
            return PendingDelivery::default();
        }
        let pending = hub.deliver_publication(channel, epoch, previous, publication);
        if !self.chance.happens(|faults| faults.repetition) {
            return pending;
        }
        let repeated = hub.deliver_publication(channel, epoch, previous, publication);
        PendingDelivery::new(|| drop((pending, repeated)))
    }

    fn deliver_membership(&self, channel: &str, membership: &Membership) {
        self.hub.upgrade().iter().for_each(|hub| hub.deliver_membership(channel, membership));
    }

    fn deliver_history_lost(&self, channel: &str) {
        self.hub.upgrade().iter().for_each(|hub| hub.deliver_history_lost(channel));
    }

    fn deliver_control(&self, control: &Control) {
        self.hub.upgrade().iter().for_each(|hub| hub.deliver_control(control));
    }

    fn retention(&self, channel: &str) -> Option<Retention> {
        self.hub.upgrade()?.retention(channel)
    }
}

impl<E: Engine> FaultyEngine<E> {
    pub(super) fn new(inner: E, model: Arc<Model>, rng: Rng) -> Self {
        let faults = Arc::new(Mutex::new(Faults::MANY));
        let chance = Arc::new(Chance { rng: Mutex::new(rng), faults });
        let started = tokio::time::Instant::now();
        Self { inner, model, chance, delivery: OnceLock::new(), started }
    }

    pub(super) fn faults(&self) -> Arc<Mutex<Faults>> {
        self.chance.faults.clone()
    }
}

impl<E: Engine> Engine for FaultyEngine<E> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn start(&self, hub: Weak<dyn Delivery>) {
        let lossy =
            self.delivery.get_or_init(|| Arc::new(LossyDelivery { hub, chance: self.chance.clone() }));
        let delivery: Arc<dyn Delivery> = lossy.clone();
        self.inner.start(Arc::downgrade(&delivery));
    }

    fn publish<'a>(
        &'a self,
        channel: &'a str,
        publication: Publication,
        retention: Option<Retention>,
        idempotency_key: &'a str,
    ) -> EngineFuture<'a, Position> {
        Box::pin(async move {
            self.chance.disturb().await?;
            let payload = publication.data.clone();
            let position = self.inner.publish(channel, publication, retention, idempotency_key).await?;
            self.model.publish(channel, &position, &payload, self.started.elapsed());
            // The answer may be lost although it was published.
            self.chance.disturb().await?;
            Ok(position)
        })
    }

    fn publish_membership<'a>(&'a self, channel: &'a str, membership: Membership) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.chance.delay().await;
            self.model.announce(channel, &membership);
            self.inner.publish_membership(channel, membership).await
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.chance.disturb().await?;
            self.inner.subscribe(channel).await
        })
    }

    fn unsubscribe(&self, channel: &str) {
        self.inner.unsubscribe(channel);
    }

    fn history<'a>(
        &'a self,
        channel: &'a str,
        query: &'a HistoryQuery,
        retention: Retention,
    ) -> EngineFuture<'a, History> {
        self.inner.history(channel, query, retention)
    }

    fn recover<'a>(
        &'a self,
        channel: &'a str,
        since: Option<&'a Position>,
        mode: RecoveryMode,
        retention: Retention,
        len_max: usize,
    ) -> EngineFuture<'a, Recovery> {
        Box::pin(async move {
            self.chance.disturb().await?;
            let recovery = self.inner.recover(channel, since, mode, retention, len_max).await?;
            if let Some(since) = since {
                let asked = Asked { since, mode, retention, len_max };
                self.model.check(channel, asked, self.started.elapsed(), &recovery);
            }
            self.chance.disturb().await?;
            Ok(recovery)
        })
    }

    fn remove_history<'a>(&'a self, channel: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.chance.disturb().await?;
            self.model.remove(channel);
            self.inner.remove_history(channel).await
        })
    }

    fn add_presence<'a>(&'a self, channel: &'a str, info: &'a ClientInfo) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.chance.delay().await;
            self.inner.add_presence(channel, info).await
        })
    }

    fn remove_presence<'a>(&'a self, channel: &'a str, client: &'a str) -> EngineFuture<'a, ()> {
        Box::pin(async move {
            self.chance.delay().await;
            self.inner.remove_presence(channel, client).await
        })
    }

    fn presence<'a>(
        &'a self,
        channel: &'a str,
        len_max: usize,
    ) -> EngineFuture<'a, Option<Vec<Arc<ClientInfo>>>> {
        self.inner.presence(channel, len_max)
    }

    fn control(&self, control: Control) -> EngineFuture<'_, ()> {
        self.inner.control(control)
    }

    fn maintain(&self) -> Maintaining<'_> {
        self.inner.maintain()
    }
}
