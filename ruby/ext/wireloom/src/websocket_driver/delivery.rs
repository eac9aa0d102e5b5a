//! Handing messages to listeners without the way through `emit`, which costs more than parsing them: as long as the driver's
//! `emit` is the emitter's own, neither overridden nor stubbed, what it would do is done here.

use magnus::prelude::*;
use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::value::{LazyId, Opaque};
use magnus::{Error, RArray, RClass, RObject, Ruby, Value, gc};
use rb_sys::{RBasic, VALUE, rb_obj_is_proc, rb_proc_call_with_block, rb_struct_new};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts changes of methods of drivers' classes.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
static MESSAGE_LISTENERS: LazyId = LazyId::new("message_listeners");

pub(crate) fn forget() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// How one codec delivers.
pub(crate) struct Delivery {
    /// The class of events, a Struct with one member.
    event: Opaque<RClass>,
    /// Of the driver, and of the emitter that it forwards to: the class, not a singleton one, whose `emit` was found to be
    /// the emitter's own, at so many changes.
    plain: [Cell<Option<(Value, usize)>>; 2],
}

impl Delivery {
    pub(crate) fn new(event: RClass) -> Self {
        Self { event: event.into(), plain: [const { Cell::new(None) }; 2] }
    }

    pub(crate) fn mark(&self, marker: &gc::Marker) {
        marker.mark(self.event);
        for plain in &self.plain {
            if let Some((class, _)) = plain.get() {
                marker.mark(class);
            }
        }
    }

    /// The Array of those who listen for messages, or `None` when messages have to go through `emit`.
    pub(crate) fn listeners(&self, driver: Value) -> Result<Option<RArray>, Error> {
        let mut emitter = driver;
        for plain in &self.plain {
            let Some(object) = RObject::from_value(emitter) else { return Ok(None) };
            // What the object answers to, be it a class of its own: that of a stubbed object is not the one it was made of.
            // SAFETY: `object` is a live object, which begins with an RBasic.
            let class = unsafe { Value::from_raw((*(object.as_raw() as *const RBasic)).klass) };
            let changes = CHANGES.load(Ordering::Relaxed);
            let known = plain
                .get()
                .is_some_and(|(plain, known_at)| known_at == changes && plain.as_raw() == class.as_raw());
            let answer: Value = object.funcall(*MESSAGE_LISTENERS, (known,))?;
            if answer.is_nil() {
                return Ok(None);
            }
            if !known && class.as_raw() == object.class().as_raw() {
                plain.set(Some((class, changes)));
            }
            match RArray::from_value(answer) {
                Some(listeners) => return Ok(Some(listeners)),
                None => emitter = answer,
            }
        }
        Ok(None)
    }

    /// Calls those who listen now, in order, with an event that holds `data`.
    pub(crate) fn deliver(&self, ruby: &Ruby, listeners: RArray, data: Value) -> Result<(), Error> {
        let count = listeners.len();
        if count == 0 {
            return Ok(());
        }
        let class = ruby.get_inner(self.event).as_raw();
        // SAFETY: the class is a Struct with one member.
        let event = unsafe { rb_struct_new(class, data.as_raw()) };
        if count == 1 {
            return call(listeners.entry(0)?, event);
        }
        // Those who are listening when the message arrives hear it, whatever they do to the list.
        let now = ruby.ary_new_capa(count);
        now.concat(listeners)?;
        for at in 0..count {
            call(now.entry(at as isize)?, event)?;
        }
        Ok(())
    }
}

/// `listener.call(event)`. What it raises or throws comes back as an error; nothing is borrowed meanwhile.
#[inline]
fn call(listener: Value, event: VALUE) -> Result<(), Error> {
    let listener = listener.as_raw();
    // SAFETY: it is a live value.
    if unsafe { rb_obj_is_proc(listener) } == rb_sys::Qtrue as VALUE {
        // SAFETY: all are live values; the closure owns nothing that a raise would leak.
        return protect(|| unsafe { rb_proc_call_with_block(listener, 1, &event, rb_sys::Qnil as VALUE) })
            .map(drop);
    }
    // SAFETY: both are live values.
    let (listener, event) = unsafe { (Value::from_raw(listener), Value::from_raw(event)) };
    listener.funcall::<_, _, Value>("call", (event,)).map(drop)
}
