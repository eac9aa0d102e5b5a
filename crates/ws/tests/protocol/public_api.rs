//! The public methods are those that a driver needs: none that passes bytes off as validated, and none that bypasses a guard.

use std::ops::Deref;

use wireloom_ws::{Connection, Inbound, Outbound, Reader};

/// The method of a trait was called, so the type has no public method of that name.
struct NoSuchMethod;

/// Compiles only while `$type` has no public method `$method`: method lookup would prefer it to that of the trait.
macro_rules! assert_no_public_methods {
    ($type:ty: $($method:ident)*) => {
        $({
            trait Fallback {
                fn $method(&mut self) -> NoSuchMethod {
                    NoSuchMethod
                }
            }
            impl Fallback for $type {}
            fn call(mut value: $type) -> NoSuchMethod {
                value.$method()
            }
            let _: fn($type) -> NoSuchMethod = call;
        })*
    };
}

/// Compiles only while the type does not implement `Deref`: with two implementations `A` could not be inferred.
trait NotDeref<A> {
    fn check() {}
}

impl<T: ?Sized> NotDeref<()> for T {}
impl<T: ?Sized + Deref> NotDeref<u8> for T {}

#[test]
fn no_public_method_bypasses_a_guard() {
    assert_no_public_methods!(Connection:
        take_memory give_memory take_buffer give_buffer append_message send_through send_frames whole_message
        assembled received slot_filled idle inbound_mut outbound_mut);
    assert_no_public_methods!(Inbound:
        take_memory give_memory whole_message assembled received slot_filled receiver_mut);
    assert_no_public_methods!(Outbound: send_through send_frames sender_mut);
    assert_no_public_methods!(Reader:
        give_memory whole_message assembled received slot_filled inbound_mut);
}

#[test]
fn a_connection_does_not_dereference_to_a_half() {
    <Connection as NotDeref<_>>::check();
}

#[test]
fn methods_for_the_tokio_driver_are_not_documented() {
    let inbound = include_str!("../../src/inbound.rs");
    let outbound = include_str!("../../src/outbound.rs");
    let reader = include_str!("../../src/reader.rs");
    for (source, method) in [
        (inbound, "idle"),
        (reader, "idle"),
        (outbound, "append_message"),
        (outbound, "give_buffer"),
        (outbound, "take_buffer"),
    ] {
        let at = source.find(&format!("pub fn {method}(")).unwrap();
        let attributes = source[..at].rsplit("\n\n").next().unwrap();
        assert!(attributes.contains("#[doc(hidden)]"), "{method}");
    }
}
