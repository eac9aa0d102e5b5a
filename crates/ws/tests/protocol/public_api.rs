//! The public methods are those that a driver needs: none treats bytes as validated without a check, and none bypasses a guard.

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

#[test]
fn no_public_method_bypasses_a_guard() {
    assert_no_public_methods!(Connection:
        take_memory give_memory send_through send_frames whole_message assembled received slot_filled idle inbound_mut
        outbound_mut);
    assert_no_public_methods!(Inbound:
        take_memory give_memory whole_message assembled received slot_filled receiver_mut);
    assert_no_public_methods!(Outbound: send_through send_frames sender_mut);
    assert_no_public_methods!(Reader:
        give_memory whole_message assembled received slot_filled inbound_mut);
}

// `#[doc(hidden)]` is part of the list: methods for the tokio driver are not documented.
#[cfg(not(miri))]
#[test]
fn the_public_api_is_the_list_that_is_committed() {
    wireloom_testing::public_api::check(env!("CARGO_MANIFEST_DIR"), "tests/protocol/public_api.txt");
}
