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

const NIL: VALUE = rb_sys::Qnil as VALUE;
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

/// The list of listeners for messages, and the emitter whose it is: the driver, or the one that it forwards to.
#[derive(Clone, Copy)]
pub(super) struct Listeners {
    pub(super) list: RArray,
    emitter: RObject,
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

    /// The listeners for messages, or `None` when messages have to go through `emit`.
    pub(super) fn listeners(
        &self,
        ruby: &Ruby,
        owner: Owner,
        driver: Value,
    ) -> Result<Option<Listeners>, Error> {
        let mut emitter = driver;
        for plain in &self.plain {
            let Some(object) = RObject::from_value(emitter) else { return Ok(None) };
            let found = |list| Ok(Some(Listeners { list, emitter: object }));
            let (class, changes) = (class_of(object), CHANGES.load(Ordering::Relaxed));
            let known = is_known(plain, class);
            if known && let Some(list) = blocks(ruby, object) {
                return found(list);
            }
            let answer: Value = object.funcall(*MESSAGE_LISTENERS, (known,))?;
            if answer.is_nil() {
                return Ok(None);
            }
            if !known && class.as_raw() == object.class().as_raw() {
                plain.set((Held::new(owner, class.as_raw()), changes));
            }
            match RArray::from_value(answer) {
                Some(list) => return found(list),
                None => emitter = answer,
            }
        }
        Ok(None)
    }

    /// The same, where no method has to be called for it.
    #[inline]
    pub(super) fn known_listeners(&self, ruby: &Ruby, driver: Value) -> Option<Listeners> {
        let emitter = RObject::from_value(driver)?;
        let list = if is_known(&self.plain[0], class_of(emitter)) { blocks(ruby, emitter) } else { None };
        list.map(|list| Listeners { list, emitter })
    }

    /// Whether no `emit` on the way to these listeners can have been overridden since they were found.
    #[inline]
    pub(super) fn is_current(&self, driver: Value, listeners: Listeners) -> bool {
        let [own, forwarded] = &self.plain;
        let Some(object) = RObject::from_value(driver) else { return false };
        let emitter = listeners.emitter;
        is_known(own, class_of(object))
            && (emitter.as_raw() == object.as_raw() || is_known(forwarded, class_of(emitter)))
    }

    /// Calls the present listeners, in order, with an event that holds `data`.
    pub(super) fn deliver(&self, ruby: &Ruby, listeners: RArray, data: Value) -> Result<(), Error> {
        let count = listeners.len();
        if count == 0 {
            return Ok(());
        }
        if let Some(block) = Block::only(listeners) {
            return match self.make_and_deliver(block, || Some(data)) {
                Delivered::Done | Delivered::NoData => Ok(()),
                Delivered::Raised(error) | Delivered::NoMemory(error) => Err(error),
            };
        }
        // SAFETY: the closure has nothing to drop.
        let event = protect(|| unsafe { self.event(data.as_raw()) })?;
        // A copy: listeners may change the list.
        let now = ruby.ary_new_capa(count);
        now.concat(listeners)?;
        for at in 0..count {
            call(now.entry(at as isize)?, event)?;
        }
        Ok(())
    }

    /// An event that holds `data`.
    ///
    /// # Safety
    /// The caller has nothing to drop, because this raises.
    #[inline]
    unsafe fn event(&self, data: VALUE) -> VALUE {
        // SAFETY: `check_event` found that the class is a Struct with one member. `rb_struct_new` would call `initialize`.
        unsafe {
            let event = rb_sys::rb_struct_alloc_noinit(self.event.get().raw());
            rb_sys::rb_struct_aset(event, FIRST, data);
            event
        }
    }

    /// Makes the data of an event, and the event, and calls the block with it, all in one `protect`, which takes as long as a small
    /// message. Nothing is called without data.
    pub(super) fn make_and_deliver(&self, block: Block, make: impl FnOnce() -> Option<Value>) -> Delivered {
        let (mut has_data, mut is_called) = (true, false);
        // SAFETY: the closure has nothing to drop, and `block` is on the stack.
        let done = protect(|| unsafe {
            let Some(data) = make() else {
                has_data = false;
                return NIL;
            };
            let event = self.event(data.as_raw());
            is_called = true;
            rb_proc_call_with_block(block.0, 1, &event, NIL)
        });
        match done {
            Ok(_) if has_data => Delivered::Done,
            Ok(_) => Delivered::NoData,
            Err(error) if is_called => Delivered::Raised(error),
            Err(error) => Delivered::NoMemory(error),
        }
    }
}

/// The result of [`Delivery::make_and_deliver`].
pub(super) enum Delivered {
    Done,
    NoData,
    /// There was no memory for the event or its data.
    NoMemory(Error),
    /// The block raised, or threw.
    Raised(Error),
}

/// A listener that is a Proc, whose `call` is that of Proc.
#[derive(Clone, Copy)]
pub(super) struct Block(VALUE);

impl Block {
    /// The only listener of a list.
    #[inline]
    pub(super) fn only(listeners: RArray) -> Option<Self> {
        // SAFETY: a live Array.
        let first = unsafe { rb_sys::rb_ary_entry(listeners.as_raw(), 0) };
        // SAFETY: a live value.
        (listeners.len() == 1 && unsafe { is_plain_proc(first) }).then_some(Self(first))
    }
}

/// The class that methods are looked up in: a stubbed object has a singleton one.
#[inline]
fn class_of(object: RObject) -> Value {
    // SAFETY: a live object, which begins with an RBasic.
    unsafe { Value::from_raw((*(object.as_raw() as *const RBasic)).klass) }
}

/// Whether the `emit` of a class was found to be the emitter's own, and nothing has changed since.
#[inline]
fn is_known(plain: &Cell<(Held, usize)>, class: Value) -> bool {
    let (known, at) = plain.get();
    at == CHANGES.load(Ordering::Relaxed) && known.raw() == class.as_raw()
}

/// The result of an emitter's `message_listeners(true)`; `None` where a call is needed, because the first listener is no Proc.
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
        return protect(|| unsafe { rb_proc_call_with_block(listener, 1, &event, NIL) }).map(drop);
    }
    // SAFETY: both are live values.
    let (listener, event) = unsafe { (Value::from_raw(listener), Value::from_raw(event)) };
    listener.funcall::<_, _, Value>("call", (event,)).map(drop)
}
