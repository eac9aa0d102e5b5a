//! Who wants to hear of what: the listeners of a connection or a stream, called without a Hash or an Array in between.

use std::cell::RefCell;

use magnus::gc::Marker;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Ruby, Symbol, Value, block::Proc};
use rb_sys::VALUE;

use super::frame::{NIL, value};
use super::names::sym;

#[derive(Clone, Copy)]
struct Listener {
    event: VALUE,
    callable: VALUE,
    /// Tells listeners apart while others come and go.
    token: u32,
    once: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
    tokens: u32,
}

impl Listeners {
    pub(crate) fn mark(&self, marker: &Marker) {
        for listener in &self.list {
            // Symbols made from Strings at run time can be collected too.
            marker.mark(value(listener.event));
            marker.mark(value(listener.callable));
        }
    }

    pub(crate) fn heap_size(&self) -> usize {
        self.list.capacity() * size_of::<Listener>()
    }

    #[inline]
    pub(crate) fn any(&self, event: VALUE) -> bool {
        self.list.iter().any(|listener| listener.event == event)
    }

    pub(crate) fn add(&mut self, event: VALUE, callable: VALUE, once: bool) {
        self.tokens = self.tokens.wrapping_add(1);
        if self.list.capacity() == self.list.len() {
            self.list.reserve_exact(self.list.len().clamp(4, 64));
        }
        self.list.push(Listener { event, callable, token: self.tokens, once });
    }

    #[inline]
    fn next(&self, event: VALUE, from: usize) -> Option<(usize, Listener)> {
        let at = from + self.list.get(from..)?.iter().position(|listener| listener.event == event)?;
        Some((at, self.list[at]))
    }

    /// Where the listener stands now, which stood at `at`.
    fn find(&self, at: usize, token: u32) -> Option<usize> {
        match self.list.get(at) {
            Some(listener) if listener.token == token => Some(at),
            _ => self.list.iter().position(|listener| listener.token == token),
        }
    }
}

/// Adds the block as a listener of the event, a Symbol or what has `to_sym`. Both are now held.
pub(crate) fn listen(
    ruby: &Ruby,
    listeners: &RefCell<Listeners>,
    event: Value,
    once: bool,
) -> Result<[VALUE; 2], Error> {
    let Ok(callable) = ruby.block_proc() else {
        return Err(Error::new(ruby.exception_arg_error(), "must provide callback"));
    };
    let event = match Symbol::from_value(event) {
        Some(symbol) => symbol,
        None => event.funcall_public("to_sym", ())?,
    };
    let held = [event.as_raw(), callable.as_raw()];
    listeners.borrow_mut().add(held[0], held[1], once);
    Ok(held)
}

/// Calls the listeners of an event in their order. One that answers `:delete`, or that wanted to hear once, goes; when one
/// raises, those behind it stay uncalled.
#[inline]
pub(crate) fn emit(
    listeners: &RefCell<Listeners>,
    event: VALUE,
    args: &[VALUE],
    block: VALUE,
) -> Result<(), Error> {
    let mut from = 0;
    loop {
        let next = listeners.borrow().next(event, from);
        let Some((at, listener)) = next else { return Ok(()) };
        let answer = call(listener.callable, args, block)?;
        let mut listeners = listeners.borrow_mut();
        let now = listeners.find(at, listener.token);
        if listener.once || answer == sym().delete {
            if let Some(now) = now {
                listeners.list.remove(now);
            }
            from = now.unwrap_or(at);
        } else {
            from = now.map_or(at, |now| now + 1);
        }
    }
}

#[inline]
fn call(callable: VALUE, args: &[VALUE], block: VALUE) -> Result<VALUE, Error> {
    // `protect` is a jump's landing place: nothing in here needs to be dropped.
    magnus::rb_sys::protect(|| {
        // SAFETY: the listener is a Proc, marked by its list or held by this stack; the arguments lie on this stack.
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

    pub(crate) fn deliver(&self, listeners: &RefCell<Listeners>) -> Result<(), Error> {
        let args: Vec<VALUE> = self.args.iter().map(|arg| arg.as_raw()).collect();
        emit(listeners, self.event, &args, self.block)
    }
}
