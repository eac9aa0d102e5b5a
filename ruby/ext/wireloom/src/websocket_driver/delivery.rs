//! Delivery of messages to listeners without `emit`, which costs more than parsing them: while the driver's `emit` is the
//! emitter's own, neither overridden nor stubbed, this does the same.

use magnus::prelude::*;
use magnus::rb_sys::{AsRawId, AsRawValue, FromRawValue};
use magnus::value::LazyId;
use magnus::{Error, RArray, RClass, RHash, RObject, Ruby, Value};
use rb_sys::{ID, RBasic, SPECIAL_CONST_P, VALUE, rb_cProc, rb_proc_call_with_block};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::guard::protect;
use crate::held::{Held, Owner, traced};

/// Counts changes of methods of drivers' classes.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// The Integer 0.
const FIRST: VALUE = 1;

static MESSAGE_LISTENERS: LazyId = LazyId::new("message_listeners");
static LISTENERS: LazyId = LazyId::new("@listeners");
static MESSAGE: LazyId = LazyId::new("message");
/// Methods of a driver for what is not delivered to listeners here.
pub(super) static RECEIVE_MESSAGE: LazyId = LazyId::new("receive_message");
pub(super) static RECEIVE_EXTENDED: LazyId = LazyId::new("receive_extended");
pub(super) static RECEIVE_PING: LazyId = LazyId::new("receive_ping");
pub(super) static RECEIVE_PONG: LazyId = LazyId::new("receive_pong");
pub(super) static RECEIVE_CLOSE: LazyId = LazyId::new("receive_close");
pub(super) static FAIL: LazyId = LazyId::new("fail");

/// Called once, while the library loads.
pub(super) fn load(ruby: &Ruby) {
    let listening = [&MESSAGE_LISTENERS, &LISTENERS, &MESSAGE];
    let receiving =
        [&RECEIVE_MESSAGE, &RECEIVE_EXTENDED, &RECEIVE_PING, &RECEIVE_PONG, &RECEIVE_CLOSE, &FAIL];
    for name in listening.into_iter().chain(receiving) {
        LazyId::force(name, ruby);
    }
}

pub(crate) fn forget() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Whether `class` is one of events: a Struct with one member.
///
/// # Errors
/// It is not.
pub(super) fn check_event(ruby: &Ruby, class: RClass) -> Result<(), Error> {
    let is_struct = class.is_inherited(ruby.class_struct());
    let members = if is_struct {
        // SAFETY: a class made by Struct, or Struct itself, for which this raises.
        let members = protect(|| unsafe { rb_sys::rb_struct_s_members(class.as_raw()) })?;
        // SAFETY: a live object.
        RArray::from_value(unsafe { Value::from_raw(members) }).map_or(0, RArray::len)
    } else {
        0
    };
    if members == 1 {
        return Ok(());
    }
    Err(Error::new(ruby.exception_type_error(), "events have to be of a Struct with one member"))
}

/// How one codec delivers.
pub(crate) struct Delivery {
    /// The class of events, a Struct with one member.
    event: Cell<Held>,
    /// The classes, not singleton ones, of the driver and of the emitter that it forwards to, whose `emit` was found to be the
    /// emitter's own, and the value of [`CHANGES`] then.
    plain: [Cell<(Held, usize)>; 2],
}

traced!(Delivery { event, plain });

impl Default for Delivery {
    fn default() -> Self {
        Self { event: Cell::new(Held::NIL), plain: [const { Cell::new((Held::NIL, 0)) }; 2] }
    }
}

impl Delivery {
    /// `event` passed [`check_event`].
    pub(super) fn set_event(&self, owner: Owner, event: RClass) {
        self.event.set(Held::new(owner, event.as_raw()));
    }

    /// The Array of listeners for messages, or `None` when messages have to go through `emit`.
    pub(super) fn listeners(
        &self,
        ruby: &Ruby,
        owner: Owner,
        driver: Value,
    ) -> Result<Option<RArray>, Error> {
        let mut emitter = driver;
        for plain in &self.plain {
            let Some(object) = RObject::from_value(emitter) else { return Ok(None) };
            // The class that methods are looked up in: a stubbed object has a singleton one.
            // SAFETY: `object` is a live object, which begins with an RBasic.
            let class = unsafe { Value::from_raw((*(object.as_raw() as *const RBasic)).klass) };
            let changes = CHANGES.load(Ordering::Relaxed);
            let (known_class, known_at) = plain.get();
            let known = known_at == changes && known_class.raw() == class.as_raw();
            if known && let Some(listeners) = blocks(ruby, object) {
                return Ok(Some(listeners));
            }
            let answer: Value = object.funcall(*MESSAGE_LISTENERS, (known,))?;
            if answer.is_nil() {
                return Ok(None);
            }
            if !known && class.as_raw() == object.class().as_raw() {
                plain.set((Held::new(owner, class.as_raw()), changes));
            }
            match RArray::from_value(answer) {
                Some(listeners) => return Ok(Some(listeners)),
                None => emitter = answer,
            }
        }
        Ok(None)
    }

    /// Calls the present listeners, in order, with an event that holds `data`.
    pub(super) fn deliver(&self, ruby: &Ruby, listeners: RArray, data: Value) -> Result<(), Error> {
        let count = listeners.len();
        if count == 0 {
            return Ok(());
        }
        let class = self.event.get().raw();
        // SAFETY: `check_event` found that the class is a Struct with one member. `rb_struct_new` would call `initialize`.
        let event = unsafe {
            let event = rb_sys::rb_struct_alloc_noinit(class);
            rb_sys::rb_struct_aset(event, FIRST, data.as_raw());
            event
        };
        if count == 1 {
            return call(listeners.entry(0)?, event);
        }
        // A copy: listeners may change the list.
        let now = ruby.ary_new_capa(count);
        now.concat(listeners)?;
        for at in 0..count {
            call(now.entry(at as isize)?, event)?;
        }
        Ok(())
    }
}

/// What `message_listeners(true)` of an emitter returns, where that needs no call: the first listener is a Proc.
#[inline]
fn blocks(ruby: &Ruby, emitter: RObject) -> Option<RArray> {
    let [name, event]: [ID; 2] = [&LISTENERS, &MESSAGE].map(|id| LazyId::get_inner_with(id, ruby).as_raw());
    // SAFETY: live objects.
    unsafe {
        let all = RHash::from_value(Value::from_raw(rb_sys::rb_ivar_get(emitter.as_raw(), name)))?;
        let found = rb_sys::rb_hash_lookup(all.as_raw(), rb_sys::rb_id2sym(event));
        let listeners = RArray::from_value(Value::from_raw(found))?;
        let first = rb_sys::rb_ary_entry(found, 0);
        is_plain_proc(first).then_some(listeners)
    }
}

/// Whether `value` is a Proc whose `call` is that of Proc: a subclass and a stub may have their own.
///
/// # Safety
/// It is a live value.
#[inline]
unsafe fn is_plain_proc(value: VALUE) -> bool {
    // SAFETY: an object begins with an RBasic.
    !SPECIAL_CONST_P(value) && unsafe { (*(value as *const RBasic)).klass == rb_cProc }
}

/// `listener.call(event)`. What it raises or throws comes back as an error; nothing is borrowed meanwhile.
#[inline]
fn call(listener: Value, event: VALUE) -> Result<(), Error> {
    let listener = listener.as_raw();
    // SAFETY: it is a live value.
    if unsafe { is_plain_proc(listener) } {
        // SAFETY: all are live values; the closure owns nothing that a raise would leak.
        return protect(|| unsafe { rb_proc_call_with_block(listener, 1, &event, rb_sys::Qnil as VALUE) })
            .map(drop);
    }
    // SAFETY: both are live values.
    let (listener, event) = unsafe { (Value::from_raw(listener), Value::from_raw(event)) };
    listener.funcall::<_, _, Value>("call", (event,)).map(drop)
}
