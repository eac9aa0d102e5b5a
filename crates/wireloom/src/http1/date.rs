//! The value of `Date` (RFC 9110 §6.6.1), made once a second on each thread.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

/// As long as IMF-fixdate is.
pub(crate) type Date = [u8; 29];

thread_local! {
    static LATEST: Cell<(u64, Date)> = const { Cell::new((u64::MAX, [b' '; 29])) };
}

/// The date now.
pub(crate) fn now() -> Date {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (second, date) = LATEST.get();
    if second == now {
        return date;
    }
    let text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(now));
    let date = text.as_bytes().try_into().unwrap_or(date);
    LATEST.set((now, date));
    date
}

#[cfg(test)]
mod tests {
    #[test]
    fn formats_the_date_as_imf_fixdate() {
        let date = super::now();
        assert_eq!(date, super::now());
        let text = std::str::from_utf8(&date).unwrap();
        let parsed = httpdate::parse_http_date(text).unwrap();
        assert!(parsed.elapsed().unwrap().as_secs() < 5, "{text}");
    }
}
