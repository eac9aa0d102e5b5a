//! Follows the live publications of one channel, and reads missing ones from its stream.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use prost::Message as _;
use tokio::sync::{Mutex, Notify};
use tracing::warn;

use super::backlog::{Backlog, Dropped};
use super::history::{self, Limits, Missed};
use super::names::{epoch_in, token_of};
use super::streams::Nats;
use crate::engine::commands::COMMANDS;
use crate::engine::{
    CATCH_UP_PAUSE, CatchUp, CaughtUp, DELIVERIES_PER_TURN, Delivery, EngineError, Membership,
};
use crate::history::{HistoryQuery, Position, Recovery, Retention, count_within};
use crate::protocol::{Publication, Push};

/// The delay before the stream is read again after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Follows the live publications of one channel.
pub(super) struct Follower {
    channel: String,
    cursor: Mutex<Option<Cursor>>,
    /// Requests a comparison of the history with the stream.
    pub(super) sync: Notify,
}

/// The sequences up to which a channel has been delivered.
#[derive(Clone, Debug, PartialEq)]
struct Cursor {
    epoch: String,
    /// Nothing after this is missing. `delivered <= complete` but for the first publications after a subscription.
    complete: u64,
    /// Publications up to this sequence are not delivered again.
    delivered: u64,
    /// Whether the rest is delivered in parts: subscribers with a position recover it themselves.
    is_in_parts: bool,
    /// The connection to NATS on which the history was last compared. Before the comparison on a later one, more may be missing than the
    /// stream still has.
    connection: u64,
}

/// A publication that the stream's server has republished.
struct Live<'a> {
    epoch: &'a str,
    sequence: u64,
    /// The sequence of the channel's previous publication; 0 if that is no longer kept.
    previous: u64,
    /// `None` if this node keeps no history, while another one, with a newer configuration or an older one, does.
    retention: Option<Retention>,
    payload: &'a [u8],
}

impl Follower {
    pub(super) fn new(channel: &str) -> Self {
        Self { channel: channel.into(), cursor: Mutex::default(), sync: Notify::new() }
    }

    /// Follows from this position on, which was read on this connection or on a later one: a subscriber starts there, and must not miss any
    /// later publication.
    pub(super) async fn follow_from(&self, position: &Position, connection: u64) {
        self.cursor.lock().await.get_or_insert_with(|| Cursor {
            epoch: position.epoch.clone(),
            complete: position.offset,
            delivered: 0,
            is_in_parts: false,
            connection,
        });
    }

    /// Delivers messages as they arrive, until the task is aborted or the hub is dropped.
    pub(super) async fn run(
        self: Arc<Self>,
        nats: Arc<Nats>,
        delivery: Weak<dyn Delivery>,
        messages: Subscriber,
    ) {
        let mut backlog = Backlog::new(messages, nats.backlogs.clone());
        let (mut retry, mut is_due) = (false, false);
        loop {
            let message = tokio::select! {
                // Deliver the backlog before a read: the read moves the cursor past it.
                biased;
                message = backlog.next() => match message {
                    Some(Ok(message)) => Ok(message),
                    Some(Err(Dropped)) => {
                        is_due |= self.has_dropped(&nats, &mut backlog);
                        continue;
                    }
                    None => return,
                },
                () = self.sync.notified() => {
                    is_due = true;
                    continue;
                }
                () = tokio::time::sleep(RETRY_AFTER), if retry && !is_due => {
                    is_due = true;
                    continue;
                }
                // Messages are delivered while it waits.
                Ok(permit) = nats.comparing.acquire(), if is_due => Err(permit),
            };
            let Some(delivery) = delivery.upgrade() else { return };
            let handled = match &message {
                Ok(message) => backlog.during(self.handle_message(&nats, &*delivery, message)).await,
                Err(_permit) => backlog.during(self.catch_up(&nats, &*delivery)).await,
            };
            is_due &= message.is_ok();
            if matches!(handled, Ok(true)) {
                is_due = true;
                backlog.during(tokio::time::sleep(CATCH_UP_PAUSE)).await;
            }
            is_due |= self.has_dropped(&nats, &mut backlog);
            retry = handled.is_err();
            if let Err(error) = handled
                && nats.may_warn()
            {
                warn!(channel = self.channel, %error, "a history was not read; trying again");
            }
        }
    }

    /// Whether messages were dropped since the last call: those that are stored are read again.
    fn has_dropped(&self, nats: &Nats, backlog: &mut Backlog<Subscriber>) -> bool {
        let dropped = backlog.take_dropped();
        if dropped > 0 && nats.may_warn() {
            warn!(channel = self.channel, dropped, "messages of NATS arrive faster than they are delivered");
        }
        dropped > 0
    }

    /// Returns whether there is more to read.
    async fn handle_message(
        &self,
        nats: &Nats,
        delivery: &dyn Delivery,
        message: &Message,
    ) -> Result<bool, EngineError> {
        match token_of(&message.subject) {
            Some("p") => {
                if let Ok(publication) = Publication::decode(&*message.payload) {
                    delivery.deliver_publication(&self.channel, "", 0, &Arc::new(publication)).finish();
                }
            }
            Some("m") => {
                if let Ok(push) = Push::decode(&*message.payload) {
                    let join = push.join.and_then(|join| join.info).map(Membership::Join);
                    let leave = push.leave.and_then(|leave| leave.info).map(Membership::Leave);
                    if let Some(membership) = join.or(leave) {
                        delivery.deliver_membership(&self.channel, &membership);
                    }
                }
            }
            Some(token) => {
                let number = |name: &str| message.headers.as_ref()?.get(name)?.as_str().parse::<u64>().ok();
                if let (Some(epoch), Some(sequence), Some(previous)) = (
                    epoch_in(token),
                    number(async_nats::header::NATS_SEQUENCE.as_ref()),
                    number(async_nats::header::NATS_LAST_SEQUENCE.as_ref()),
                ) {
                    let retention = delivery.retention(&self.channel);
                    let live = Live { epoch, sequence, previous, retention, payload: &message.payload };
                    return self.handle_live(nats, delivery, live).await;
                }
            }
            None => {}
        }
        Ok(false)
    }

    async fn handle_live(
        &self,
        nats: &Nats,
        delivery: &dyn Delivery,
        live: Live<'_>,
    ) -> Result<bool, EngineError> {
        let mut cursor = self.cursor.lock().await;
        if live.retention.is_none() {
            *cursor = None;
        }
        let at = match &mut *cursor {
            Some(at) if at.epoch == live.epoch => at,
            // The first publication, or the first of a new stream.
            other => {
                let is_lost = other.is_some();
                if is_lost {
                    delivery.deliver_history_lost(&self.channel);
                }
                // Earlier commands of the new history are executed, too.
                let complete = if is_lost && self.channel == COMMANDS { 0 } else { live.previous };
                let epoch = live.epoch.to_owned();
                let connection = nats.connection();
                other.insert(Cursor { epoch, complete, delivered: 0, is_in_parts: false, connection })
            }
        };
        if live.sequence <= at.delivered {
            return Ok(false);
        }
        let is_missing = match live.previous {
            0 => at.connection != nats.connection(),
            previous => previous > at.complete,
        };
        if let Some(retention) = live.retention
            && live.sequence > at.complete
            && is_missing
        {
            // It is closed only with the hub.
            let _permit = nats.comparing.acquire().await;
            if self.read_missing(nats, delivery, at, retention).await? {
                return Ok(true);
            }
            // The stream may not hold the live publication yet, where several servers keep it. Or what was missed is lost.
            // Or it belongs to an earlier stream.
            if live.sequence <= at.delivered || live.epoch != at.epoch {
                return Ok(false);
            }
        }
        if history::is_tombstone(live.payload) {
            delivery.deliver_history_lost(&self.channel);
        } else if let Ok(mut publication) = Publication::decode(live.payload) {
            publication.offset = live.sequence;
            delivery
                .deliver_publication(&self.channel, &at.epoch, live.previous, &Arc::new(publication))
                .finish();
        }
        at.delivered = live.sequence;
        at.complete = at.complete.max(live.sequence);
        at.is_in_parts = false;
        Ok(false)
    }

    /// Delivers the messages of the stream that did not arrive live. Returns whether there are more.
    async fn catch_up(&self, nats: &Nats, delivery: &dyn Delivery) -> Result<bool, EngineError> {
        let mut cursor = self.cursor.lock().await;
        match (&mut *cursor, delivery.retention(&self.channel)) {
            (Some(at), Some(retention)) => self.read_missing(nats, delivery, at, retention).await,
            _ => Ok(false),
        }
    }

    /// Delivers what is after the cursor, or reports that the history no longer contains all of it. Returns whether there is more.
    async fn read_missing(
        &self,
        nats: &Nats,
        delivery: &dyn Delivery,
        at: &mut Cursor,
        retention: Retention,
    ) -> Result<bool, EngineError> {
        let connection = nats.connection();
        let since = Position { offset: at.complete, epoch: at.epoch.clone() };
        let CatchUp { count_max, len_max } = CatchUp::new(delivery, &self.channel);
        let limits = Limits { count: count_max, len: len_max };
        let missed = history::missed(nats, &self.channel, &since, retention, limits).await?;
        let Missed { recovery: Recovery { mut publications, recovered, mut position }, has_more } = missed;
        let is_lost = !recovered && !has_more;
        let (channel, is_in_parts) = (&self.channel, at.is_in_parts);
        let caught_up =
            CaughtUp::decide(delivery, channel, is_lost, has_more, is_in_parts, &mut publications).await;
        if caught_up == CaughtUp::Part {
            publications.truncate(count_within(&publications, len_max));
            position.offset = publications.last().map_or(since.offset, |last| last.offset);
        }
        if caught_up == CaughtUp::Lost && self.channel == COMMANDS {
            // The commands that are left have not been executed.
            let read = history::read(nats, &self.channel, &HistoryQuery::default(), retention).await?;
            (publications, position) = (read.publications, read.position);
            publications.retain(|one| position.epoch != since.epoch || one.offset > since.offset);
        }
        let mut previous = at.complete;
        // In turns, so that the subscribers are written to in between.
        for turn in publications.chunks(DELIVERIES_PER_TURN) {
            for publication in turn {
                delivery.deliver_publication(&self.channel, &at.epoch, previous, publication).finish();
                previous = publication.offset;
            }
            tokio::task::yield_now().await;
        }
        at.delivered = match caught_up {
            // What has arrived live meanwhile is still delivered.
            CaughtUp::Lost if self.channel != COMMANDS => {
                if position.epoch == at.epoch {
                    at.delivered
                } else {
                    0
                }
            }
            _ => position.offset,
        };
        at.complete = position.offset;
        at.epoch = position.epoch;
        at.is_in_parts = caught_up == CaughtUp::Part;
        at.connection = connection;
        Ok(at.is_in_parts)
    }
}
