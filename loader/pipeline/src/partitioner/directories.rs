//! Path segments: times by the hour they fall in, values escaped as Hive does.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Spans of event time whose segments are kept. Beyond it they are forgotten and made again.
const MAX_KNOWN: usize = 1 << 16;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The shortest time after which a format may give another text; None if the format uses anything
/// but `%Y %m %d %j %H %M` and plain characters, or no time at all.
pub(super) fn step_ms(format: &str) -> Option<i64> {
    let mut step = None;
    let mut rest = format.chars();
    while let Some(letter) = rest.next() {
        if letter != '%' {
            if letter.is_control() {
                return None;
            }
            continue;
        }
        let directive = match rest.next()? {
            'Y' | 'm' | 'd' | 'j' => DAY_MS,
            'H' => HOUR_MS,
            'M' => MINUTE_MS,
            _ => return None,
        };
        step = Some(step.map_or(directive, |step: i64| step.min(directive)));
    }
    step
}

/// The segments of the time keys for any instant, formatted once per span of time in which they
/// stay the same.
#[derive(Debug)]
pub(super) struct TimeSegments {
    formats: Vec<(String, String)>,
    zone: TimeZone,
    step_ms: i64,
    /// Start of each known span, its end (exclusive) and where its segments are.
    known: BTreeMap<i64, (i64, usize)>,
    segments: Vec<Vec<String>>,
    last: (i64, i64, usize),
}

impl TimeSegments {
    /// `formats` are key names and formats that [`step_ms`] accepts.
    pub(super) fn new(formats: Vec<(String, String)>, zone: TimeZone) -> Self {
        let steps = formats.iter().filter_map(|(_, format)| step_ms(format));
        // Zones change their offset within a day; hours are short enough to cut around it.
        let longest = if zone == TimeZone::UTC {
            DAY_MS
        } else {
            HOUR_MS
        };
        let step_ms = steps.min().unwrap_or(DAY_MS).min(longest);
        let (known, segments) = (BTreeMap::new(), Vec::new());
        Self {
            formats,
            zone,
            step_ms,
            known,
            segments,
            last: (0, 0, 0),
        }
    }

    /// A number for the segments of `time_ms`, good until [`Self::forget`]; None beyond the years
    /// that have a calendar.
    #[inline]
    pub(super) fn find(&mut self, time_ms: i64) -> Option<usize> {
        let (start, end, index) = self.last;
        if start <= time_ms && time_ms < end {
            return Some(index);
        }
        self.look_up(time_ms)
    }

    /// The segments, one per format, in order.
    pub(super) fn segments(&self, index: usize) -> &[String] {
        self.segments.get(index).map_or(&[], Vec::as_slice)
    }

    /// Drops what is known if it grew too large. Numbers given before lose their meaning.
    pub(super) fn forget_if_large(&mut self) -> bool {
        let large = self.segments.len() > MAX_KNOWN;
        if large {
            self.known.clear();
            self.segments.clear();
            self.last = (0, 0, 0);
        }
        large
    }

    fn look_up(&mut self, time_ms: i64) -> Option<usize> {
        let before = self.known.range(..=time_ms).next_back();
        if let Some((start, (end, index))) = before
            && time_ms < *end
        {
            self.last = (*start, *end, *index);
            return Some(*index);
        }
        let (start, end) = self.span(time_ms)?;
        let local = self
            .zone
            .to_datetime(Timestamp::from_millisecond(time_ms).ok()?);
        let mut texts = Vec::with_capacity(self.formats.len());
        for (name, format) in &self.formats {
            let mut value = String::new();
            write!(value, "{}", local.strftime(format)).ok()?;
            texts.push(segment(name, &value));
        }
        let index = self.segments.len();
        self.segments.push(texts);
        self.known.insert(start, (end, index));
        self.last = (start, end, index);
        Some(index)
    }

    /// The local step that holds the instant, or just the instant where the zone's offset changes
    /// within the step.
    fn span(&self, time_ms: i64) -> Option<(i64, i64)> {
        let offset = self.offset_ms(time_ms)?;
        let local = time_ms + offset;
        let start = local - local.rem_euclid(self.step_ms) - offset;
        let end = start + self.step_ms;
        let same = |at: i64| self.offset_ms(at) == Some(offset);
        let whole = same(start) && same(end - 1);
        Some(if whole {
            (start, end)
        } else {
            (time_ms, time_ms + 1)
        })
    }

    fn offset_ms(&self, time_ms: i64) -> Option<i64> {
        let timestamp = Timestamp::from_millisecond(time_ms).ok()?;
        Some(i64::from(self.zone.to_offset(timestamp).seconds()) * 1_000)
    }
}

/// `name=value` with the value escaped.
pub(super) fn segment(name: &str, value: &str) -> String {
    let mut text = String::with_capacity(name.len() + 1 + value.len());
    text.push_str(name);
    text.push('=');
    escape_into(value, &mut text);
    text
}

/// Hive's escaping of partition values (`FileUtils.escapePathName`): its list of characters as
/// `%XX`, all others as they are. NUL is added, which no path may hold.
pub(super) fn escape_into(value: &str, out: &mut String) {
    for letter in value.chars() {
        let escaped = letter.is_ascii_control()
            || matches!(
                letter,
                '"' | '#' | '%' | '\'' | '*' | '/' | ':' | '=' | '?' | '\\' | '{' | '[' | ']' | '^'
            );
        if escaped {
            // Writing to a String cannot fail.
            let _infallible = write!(out, "%{:02X}", u32::from(letter));
        } else {
            out.push(letter);
        }
    }
}
