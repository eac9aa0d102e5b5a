//! The listeners of a connection or a stream, called without a Hash or an Array in between.

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::ReprValue;
use magnus::{Error, Ruby, Symbol, Value, block::Proc};
use rb_sys::VALUE;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use super::connection::class_of;
use super::frame::NIL;
use super::names::sym;
use crate::exclusive::Exclusive;
use crate::guard::protect;
use crate::held::{Held, Managed, Owner, traced};

#[derive(Clone, Copy)]
struct Listener {
    /// A Symbol; one made from a String at run time can be collected.
    event: Held,
    callable: Held,
    /// Identifies the listener while others come and go.
    token: u32,
    once: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
    tokens: u32,
}

traced!(Listener { event, callable, token, once });
traced!(Listeners { list, tokens });

/// A connection or a stream.
pub(crate) trait Emitter: Managed {
    fn listeners(&self) -> &Exclusive<Listeners>;

    /// Whether a class of objects is one of the drop-in's own.
    fn is_own(class: VALUE) -> bool;
}

static OVERRIDDEN: AtomicBool = AtomicBool::new(false);

/// A class, or a module that one was given, got a method `emit`: from now on every event goes through it.
pub(crate) fn override_emit() {
    OVERRIDDEN.store(true, Ordering::Relaxed);
}

/// Whether events go through the method `emit`, which a program may have overridden, in this one object too.
#[inline]
pub(crate) fn calls_emit<T: Emitter>(this: Obj<T>) -> bool {
    let class = class_of(this.as_raw());
    // SAFETY: a live object.
    let is_singleton = || class != unsafe { rb_sys::rb_obj_class(this.as_raw()) };
    OVERRIDDEN.load(Ordering::Relaxed) || !T::is_own(class) && is_singleton()
}

/// Whether the event has a listener, or may have one in a method `emit`.
#[inline]
pub(crate) fn listens<T: Emitter>(this: Obj<T>, event: VALUE) -> bool {
    calls_emit(this) || this.listeners().with(|listeners| listeners.any(event))
}

impl Listeners {
    pub(crate) fn heap_size(&self) -> usize {
        self.list.capacity() * size_of::<Listener>()
    }

    #[inline]
    fn any(&self, event: VALUE) -> bool {
        self.list.iter().any(|listener| listener.event.raw() == event)
    }

    fn add(&mut self, event: Held, callable: Held, once: bool) {
        self.tokens = self.tokens.wrapping_add(1);
        if self.list.capacity() == self.list.len() {
            self.list.reserve_exact(self.list.len().clamp(4, 64));
        }
        self.list.push(Listener { event, callable, token: self.tokens, once });
    }

    #[inline]
    fn next(&self, event: VALUE, from: usize) -> Option<(usize, Listener)> {
        let at = from + self.list.get(from..)?.iter().position(|listener| listener.event.raw() == event)?;
        Some((at, self.list[at]))
    }

    /// The position of the listener that was at `at`.
    fn find(&self, at: usize, token: u32) -> Option<usize> {
        match self.list.get(at) {
            Some(listener) if listener.token == token => Some(at),
            _ => self.list.iter().position(|listener| listener.token == token),
        }
    }
}

/// Adds the block as a listener of the event, a Symbol or an object with `to_sym`.
pub(crate) fn listen<T: Emitter>(ruby: &Ruby, this: Obj<T>, event: Value, once: bool) -> Result<(), Error> {
    let Ok(callable) = ruby.block_proc() else {
        return Err(Error::new(ruby.exception_arg_error(), "must provide callback"));
    };
    let event = match Symbol::from_value(event) {
        Some(symbol) => symbol,
        None => event.funcall_public("to_sym", ())?,
    };
    let owner = Owner::of(this);
    let (event, callable) = (Held::new(owner, event.as_raw()), Held::new(owner, callable.as_raw()));
    this.listeners().with(|listeners| listeners.add(event, callable, once));
    Ok(())
}

/// Emits an event.
#[inline]
pub(crate) fn emit<T: Emitter>(this: Obj<T>, event: VALUE, args: &[VALUE]) -> Result<(), Error> {
    if calls_emit(this) { call_emit(this, event, args) } else { deliver(this, event, args, NIL) }
}

/// Of an event that is emitted here.
const ARGS_MAX: usize = 3;

/// Emits an event by the method `emit`.
#[cold]
pub(crate) fn call_emit<T: Emitter>(this: Obj<T>, event: VALUE, args: &[VALUE]) -> Result<(), Error> {
    let mut all = [NIL; 1 + ARGS_MAX];
    all[0] = event;
    all[1..=args.len()].copy_from_slice(args);
    // SAFETY: live objects, and a closure that has nothing to drop.
    protect(|| unsafe {
        let name = rb_sys::rb_sym2id(sym().emit);
        rb_sys::rb_funcallv(this.as_raw(), name, 1 + args.len() as c_int, all.as_ptr())
    })
    .map(drop)
}

/// Calls the listeners of an event in their order. One that returns `:delete`, or that was added by `once`, is removed; when one
/// raises, those behind it are not called. `this` stays alive until the last one has returned.
#[inline]
fn deliver<T: Emitter>(this: Obj<T>, event: VALUE, args: &[VALUE], block: VALUE) -> Result<(), Error> {
    let done = emit_from(this, event, args, block);
    std::hint::black_box(this.as_raw());
    done
}

#[inline]
fn emit_from<T: Emitter>(this: Obj<T>, event: VALUE, args: &[VALUE], block: VALUE) -> Result<(), Error> {
    let mut from = 0;
    loop {
        let next = this.listeners().with(|listeners| listeners.next(event, from));
        let Some((at, listener)) = next else { return Ok(()) };
        let answer = call(listener.callable.raw(), args, block)?;
        let remove = listener.once || answer == sym().delete;
        from = this.listeners().with(|listeners| {
            let now = listeners.find(at, listener.token);
            if !remove {
                return now.map_or(at, |now| now + 1);
            }
            if let Some(now) = now {
                listeners.list.remove(now);
            }
            now.unwrap_or(at)
        });
    }
}

#[inline]
fn call(callable: VALUE, args: &[VALUE], block: VALUE) -> Result<VALUE, Error> {
    // `protect` catches exceptions: nothing in here needs to be dropped.
    protect(|| {
        // SAFETY: the listener is a Proc, held by this stack; the arguments lie on this stack.
        unsafe { rb_sys::rb_proc_call_with_block(callable, args.len() as _, args.as_ptr(), block) }
    })
}

/// `emit(event, *args, &block)` as Ruby calls it.
pub(crate) struct Emission<'a> {
    pub(crate) event: VALUE,
    pub(crate) args: &'a [Value],
    pub(crate) block: VALUE,
}

impl<'a> Emission<'a> {
    pub(crate) fn of(ruby: &Ruby, args: &'a [Value]) -> Result<Self, Error> {
        ruby.check_arity(args.len(), 1..)?;
        let block = ruby.block_given().then(|| ruby.block_proc()).transpose()?;
        Ok(Self {
            event: args[0].as_raw(),
            args: &args[1..],
            block: block.map_or(NIL, |block: Proc| block.as_raw()),
        })
    }

    pub(crate) fn deliver<T: Emitter>(&self, this: Obj<T>) -> Result<(), Error> {
        // SAFETY: a Value is a VALUE; these are the arguments of the call, which Ruby holds.
        let args = unsafe { std::slice::from_raw_parts(self.args.as_ptr().cast::<VALUE>(), self.args.len()) };
        deliver(this, self.event, args, self.block)
    }
}
