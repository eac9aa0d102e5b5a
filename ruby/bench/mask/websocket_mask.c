/* The masking that websocket-driver has in C, for racing it on a Ruby that its own is not built for: a byte at a time, into a
 * String of its own. */
#include <ruby.h>

static VALUE
mask(VALUE self, VALUE payload, VALUE key)
{
    VALUE masked;
    const unsigned char *from, *with;
    unsigned char *to;
    long length, at;

    if (NIL_P(key) || RSTRING_LEN(key) != 4) return payload;
    length = RSTRING_LEN(payload);
    masked = rb_str_new(NULL, length);
    from = (const unsigned char *)RSTRING_PTR(payload);
    with = (const unsigned char *)RSTRING_PTR(key);
    to = (unsigned char *)RSTRING_PTR(masked);
    for (at = 0; at < length; at++) to[at] = from[at] ^ with[at & 3];
    RB_GC_GUARD(payload);
    RB_GC_GUARD(key);
    return masked;
}

void
Init_websocket_mask(void)
{
    rb_define_singleton_method(rb_define_module_under(rb_define_module("WebSocket"), "Mask"), "mask", mask, 2);
}
