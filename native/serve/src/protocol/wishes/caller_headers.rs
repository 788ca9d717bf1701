//! Caller headers: options in the head of a request, which a proxy sets as well. Those in the body win.

use axum::http::HeaderMap;

use super::{CallerOptions, Parameter, route, version_of};
use crate::answer::Refusal;
use crate::protocol::values::tensor::cut;
use crate::request::ArmVersion;

/// Equal keys are treated alike, as with the parameter `route_key`.
const ROUTE_KEY: &str = "x-route-key";
/// As the parameter `priority`.
const PRIORITY: &str = "x-priority";
/// The arm of an experiment that the request belongs to.
const ARM: &str = "x-arm";
/// The version that the arm has.
const VERSION: &str = "x-version";
/// As the parameter `deadline_ms`.
const DEADLINE_MS: &str = "x-deadline-ms";
/// The maximum length of a route key in bytes.
const KEY_BYTES_MAX: usize = 256;
/// The maximum length of an arm's name in bytes.
const ARM_BYTES_MAX: usize = 64;
/// The maximum number of digits of a deadline: more than eleven days.
const DIGITS_MAX: usize = 9;

impl CallerOptions {
    /// Reads the options in a request's headers.
    ///
    /// # Errors
    /// If one is given twice, or is not what it must be.
    pub fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut options = Self::default();
        if let Some(key) = text(headers, ROUTE_KEY)? {
            if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
                return bad(ROUTE_KEY, key, "1 to 256 printable characters of ASCII");
            }
            options.wishes.route = Some(route(Parameter::Text(key))?);
        }
        if let Some(priority) = text(headers, PRIORITY)? {
            let Some(priority) = whole(priority).and_then(|number| u8::try_from(number).ok()) else {
                return bad(PRIORITY, priority, "a whole number from 0 (first) to 255");
            };
            options.wishes.priority = priority;
        }
        if let Some(deadline) = text(headers, DEADLINE_MS)? {
            let Some(ms) = whole(deadline).filter(|ms| *ms > 0) else {
                return bad(DEADLINE_MS, deadline, "a whole number of 1 to 9 digits, at least 1");
            };
            options.header_deadline_us = Some(u64::from(ms) * 1_000);
        }
        if let Some(arm) = text(headers, ARM)? {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
            if !(1..=ARM_BYTES_MAX).contains(&arm.len()) || !arm.bytes().all(is_name) {
                return bad(ARM, arm, "1 to 64 letters, digits, `_`, `.`, `:` or `-`");
            }
            options.arm = Some(arm.into());
        }
        if let Some(version) = text(headers, VERSION)? {
            options.wishes.arm_version = match (version, version_of(version)) {
                ("active", _) => Some(ArmVersion::Active),
                ("canary", _) => Some(ArmVersion::Canary),
                (_, Ok(Some(number))) => Some(ArmVersion::Number(number)),
                _ => return bad(VERSION, version, "active, canary or a number"),
            };
        }
        Ok(options)
    }
}

/// Returns the text of a header, if it is there once.
fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::Bad(format!("header {name} is given more than once")));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Refusal::Bad(format!("header {name} has characters that are not printable ASCII"))),
    }
}

fn whole(text: &str) -> Option<u32> {
    let is_number = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn bad<T>(name: &str, value: &str, expected: &str) -> Result<T, Refusal> {
    Err(Refusal::Bad(format!("header {name} is {:?}, expected {expected}", cut(value))))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn read(headers: &[(&str, &[u8])]) -> Result<CallerOptions, Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = name.parse::<HeaderName>().expect("a name");
            map.append(name, HeaderValue::from_bytes(value).expect("a value"));
        }
        CallerOptions::of(&map)
    }

    #[test]
    fn headers_are_options_and_those_of_the_body_win() {
        let head: [(&str, &[u8]); 4] = [
            ("x-route-key", b"user-42"),
            ("x-priority", b"3"),
            ("x-arm", b"layer:new_2.b"),
            ("x-deadline-ms", b"20"),
        ];
        let mut options = read(&head).unwrap();
        assert_eq!(options.wishes.route, Some(route(Parameter::Text("user-42")).unwrap()));
        assert_eq!((options.wishes.priority, options.arm.as_deref()), (3, Some("layer:new_2.b")));
        assert_eq!((options.wishes.deadline_us, options.header_deadline_us), (None, Some(20_000)));
        options.parameter("deadline_ms", Parameter::Int(50), 8).unwrap();
        options.parameter("priority", Parameter::Int(0), 8).unwrap();
        options.parameter("route_key", Parameter::Int(7), 8).unwrap();
        assert_eq!((options.wishes.deadline_us, options.header_deadline_us), (Some(50_000), None));
        assert_eq!(options.wishes.priority, 0);
        assert_eq!(options.wishes.route, Some(route(Parameter::Int(7)).unwrap()));
        assert_eq!(read(&[]), Ok(CallerOptions::default()));
        for (text, version) in
            [("active", ArmVersion::Active), ("canary", ArmVersion::Canary), ("0018", ArmVersion::Number(18))]
        {
            let wishes = read(&[("x-version", text.as_bytes())]).unwrap().wishes;
            assert_eq!((wishes.arm_version, wishes.pin), (Some(version), None));
        }
    }

    #[test]
    fn headers_that_cannot_be_are_refused_with_what_is_expected() {
        let long = [b'a'; 257];
        let cases: [(&str, &[u8], &str); 21] = [
            ("x-deadline-ms", b"NaN", "at least 1"),
            ("x-deadline-ms", b"-5", "at least 1"),
            ("x-deadline-ms", b"0", "at least 1"),
            ("x-deadline-ms", b"1e9", "at least 1"),
            ("x-deadline-ms", b"+5", "at least 1"),
            ("x-deadline-ms", b"1000000000", "9 digits"),
            ("x-deadline-ms", b"99999999999999999999999999", "9 digits"),
            ("x-deadline-ms", b"", "at least 1"),
            ("x-priority", b"256", "0 (first) to 255"),
            ("x-priority", b"-1", "0 (first) to 255"),
            ("x-priority", b"1, 2", "0 (first) to 255"),
            ("x-route-key", b"", "1 to 256"),
            ("x-route-key", &long, "1 to 256"),
            ("x-route-key", b"\xc3\xa9", "not printable"),
            ("x-arm", b"a/b", "letters"),
            ("x-arm", &long[..65], "1 to 64"),
            ("x-arm", b"\xff", "not printable"),
            ("x-version", b"", "active, canary or a number"),
            ("x-version", b"-1", "active, canary or a number"),
            ("x-version", b"newest", "active, canary or a number"),
            ("x-version", b"99999999999999999999", "active, canary or a number"),
        ];
        for (name, value, expected) in cases {
            let refusal = read(&[(name, value)]).unwrap_err();
            assert!(matches!(&refusal, Refusal::Bad(text) if text.contains(name) && text.contains(expected)));
            assert!(refusal.to_string().len() < 300);
        }
        for name in [ROUTE_KEY, PRIORITY, ARM, DEADLINE_MS, VERSION] {
            let text = read(&[(name, b"1"), (name, b"1")]).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("more than once"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(
            named in proptest::collection::vec(
                (0..5usize, proptest::collection::vec(prop_oneof![Just(9), 32..=126u8, 128..=255u8], 0..300)),
                0..6,
            ),
        ) {
            let names = [ROUTE_KEY, PRIORITY, ARM, DEADLINE_MS, VERSION];
            let given: Vec<_> = named.iter().map(|(name, value)| (names[*name], value.as_slice())).collect();
            match read(&given) {
                Ok(options) => {
                    prop_assert!(options.header_deadline_us.is_none_or(|us| (1_000..1_000_000_000_000).contains(&us)));
                    prop_assert!(options.arm.is_none_or(|arm| (1..=64).contains(&arm.len())));
                    for name in names {
                        prop_assert!(given.iter().filter(|(other, _)| *other == name).count() < 2);
                    }
                }
                Err(refusal) => prop_assert!(matches!(refusal, Refusal::Bad(text) if text.len() < 1_000)),
            }
        }

        #[test]
        fn every_number_in_range_is_read(priority in 0..=255u8, ms in 1..=999_999_999u32) {
            let head = [("x-priority", priority.to_string()), ("x-deadline-ms", ms.to_string())];
            let given: Vec<_> = head.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let options = read(&given).unwrap();
            prop_assert_eq!(options.wishes.priority, priority);
            prop_assert_eq!(options.header_deadline_us, Some(u64::from(ms) * 1_000));
        }
    }
}
