//! Compares the public declarations with the committed list.

#[test]
fn the_public_api_is_the_list_that_is_committed() {
    wireloom_testing::public_api::check(env!("CARGO_MANIFEST_DIR"), "tests/protocol/public_api.txt");
}
