//! Flow control (RFC 9113 §5.2): windows of the gem, and WINDOW_UPDATE.

use magnus::{Error, Ruby};
use rb_sys::{ID, VALUE};

use super::frames;
use super::io::Io;
use super::names::names;
use super::objects::{call, get, integer, number, set};
use super::steps::{ConnectionStep, Steps};

const WINDOW_MAX: i64 = 0x7fff_ffff;

/// A window: how much is available and used, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Window {
    object: VALUE,
    pub(super) available: i64,
    used: i64,
}

impl Window {
    /// A window of one of the gem's classes.
    #[inline]
    pub(super) fn of(owner: VALUE, name: ID) -> Option<Self> {
        let names = names();
        let object = get(owner, name);
        if !names.classes.window.is_of(object) && !names.classes.local_window.is_of(object) {
            return None;
        }
        let available = number(get(object, names.ids.available))?;
        Some(Self { object, available, used: number(get(object, names.ids.used))? })
    }

    /// The instance variables of a window of `capacity` bytes.
    pub(super) fn variables(capacity: i64) -> [(ID, VALUE); 3] {
        let ids = &names().ids;
        [(ids.available, integer(capacity)), (ids.used, integer(0)), (ids.capacity, integer(capacity))]
    }

    #[inline]
    pub(super) fn consume(self, amount: i64) -> Result<(), Error> {
        set(self.object, &self.consumed(amount))
    }

    fn consumed(self, amount: i64) -> [(ID, VALUE); 2] {
        let ids = &names().ids;
        [(ids.available, integer(self.available - amount)), (ids.used, integer(self.used + amount))]
    }

    pub(super) fn can_expand(&self, amount: i64) -> bool {
        self.available + amount <= WINDOW_MAX
    }

    pub(super) fn expand(self, amount: i64) -> Result<(), Error> {
        self.consume(-amount)
    }

    /// The increment to send when less than half of what is wanted is available.
    fn wanted(&self) -> Option<i64> {
        let (ids, classes) = (&names().ids, &names().classes);
        let capacity = number(get(self.object, ids.capacity))?;
        let is_local = classes.local_window.is_of(self.object);
        let desired = if is_local { number(get(self.object, ids.desired)) } else { None };
        let wanted = desired.map_or(self.used, |desired| desired - capacity + self.used);
        (self.available < desired.unwrap_or(capacity) / 2).then_some(wanted)
    }
}

/// The available size of a window; `None` unless it is of one of the gem's classes.
#[inline]
pub(super) fn available(owner: VALUE, name: ID) -> Option<i64> {
    let names = names();
    let object = get(owner, name);
    let is_own = names.classes.window.is_of(object) || names.classes.local_window.is_of(object);
    if is_own { number(get(object, names.ids.available)) } else { None }
}

/// `update_local_window` of a stream or of the connection itself: `is_own` when its `send_window_update` is the gem's. Returns whether
/// a method was called, during which anything may have changed.
pub(super) fn received(
    ruby: &Ruby,
    (owner, is_own): (VALUE, bool),
    (connection, of_connection): (VALUE, Steps<ConnectionStep>),
    window: Window,
    amount: i64,
) -> Result<bool, Error> {
    let ids = &names().ids;
    window.consume(amount)?;
    let window = Window { available: window.available - amount, used: window.used + amount, ..window };
    let Some(wanted) = window.wanted() else { return Ok(false) };
    let id = if owner == connection { Some(0) } else { number(get(owner, ids.id)) };
    let id = id.filter(|id| frames::STREAM_IDS.contains(id));
    let io = if is_own && window.can_expand(wanted) && (0..=WINDOW_MAX).contains(&wanted) {
        Io::of(ruby, connection, of_connection, None)?
    } else {
        None
    };
    let (Some(io), Some(id)) = (io, id) else {
        return call(owner, ids.send_window_update, &[integer(wanted)]).map(|_| true);
    };
    io.write(ruby, &frames::window_update(id as u32, wanted as u32), None)?;
    // Other fibers may have run meanwhile.
    if let Some(window) = Window::of(owner, ids.local_window).filter(|window| window.can_expand(wanted)) {
        window.expand(wanted)?;
    }
    Ok(true)
}
