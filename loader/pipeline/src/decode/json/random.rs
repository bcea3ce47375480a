//! Random documents against an oracle that knows nothing of the decoder, and against `serde_json`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::Array;
use base64::Engine as _;
use proptest::prelude::*;

use super::tests::{Cell, cell, every_type, text};
use super::*;

#[derive(Debug, Clone)]
enum Doc {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Renders with spaces and escapes that `style` picks.
fn render(doc: &Doc, style: &mut u64) -> String {
    *style = style
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    let space = ["", "", " ", "\n\t"][usize::try_from(*style >> 62).unwrap()];
    match doc {
        Doc::Null => "null".to_owned(),
        Doc::Bool(value) => value.to_string(),
        Doc::Number(text) => text.clone(),
        Doc::Text(text) => render_text(text, style),
        Doc::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(|e| render(e, style)).collect();
            format!("[{space}{}{space}]", elements.join(&format!("{space},")))
        }
        Doc::Object(members) => {
            let members: Vec<_> = members
                .iter()
                .map(|(key, value)| {
                    let key = render_text(key, style);
                    format!("{key}{space}:{space}{}", render(value, style))
                })
                .collect();
            format!(
                "{{{space}{}{space}}}",
                members.join(&format!("{space},{space}"))
            )
        }
    }
}

fn render_text(text: &str, style: &mut u64) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        *style = style
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if *style >> 60 == 0 || matches!(letter, '"' | '\\' | '\0'..='\x1f') {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(letter);
        }
    }
    out + "\""
}

fn any_number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (-1000_i32..1000).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<f64>()
            .prop_filter("finite", |f| f.is_finite())
            .prop_map(|f| format!("{f:e}")),
        (-99_999_i64..99_999, 0_u32..1000).prop_map(|(whole, part)| format!("{whole}.{part}")),
        (-999_i32..999, -5_i32..12).prop_map(|(m, e)| format!("{m}E{e:+}")),
    ]
}

fn any_doc() -> impl Strategy<Value = Doc> {
    let leaf = prop_oneof![
        Just(Doc::Null),
        any::<bool>().prop_map(Doc::Bool),
        any_number().prop_map(Doc::Number),
        ".{0,12}".prop_map(Doc::Text),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Doc::Array),
            prop::collection::btree_map("[a-z]{1,2}", inner, 0..4)
                .prop_map(|members| Doc::Object(members.into_iter().collect())),
        ]
    })
}

fn fitting(name: &str) -> BoxedStrategy<Doc> {
    let integers = any::<i64>().prop_map(|n| Doc::Number(n.to_string()));
    match name {
        "a" => integers.boxed(),
        "b" => any::<i32>()
            .prop_map(|n| Doc::Number(n.to_string()))
            .boxed(),
        "c" => any_number().prop_map(Doc::Number).boxed(),
        "d" => ".{0,40}".prop_map(Doc::Text).boxed(),
        "e" => any::<bool>().prop_map(Doc::Bool).boxed(),
        "f" => (any::<bool>(), -99_999_i64..99_999, 0_u32..100)
            .prop_map(|(quoted, whole, cents)| {
                let text = format!("{whole}.{cents:02}");
                if quoted {
                    Doc::Text(text)
                } else {
                    Doc::Number(text)
                }
            })
            .boxed(),
        "g" => prop_oneof![
            integers,
            (-62_000_000_000_000_i64..250_000_000_000_000).prop_map(|ms| {
                Doc::Text(jiff::Timestamp::from_millisecond(ms).unwrap().to_string())
            })
        ]
        .boxed(),
        "h" => (1_i16..9999, 1_i8..13, 1_i8..32)
            .prop_map(|(y, m, d)| Doc::Text(format!("{y:04}-{m:02}-{d:02}")))
            .boxed(),
        "i" => prop::collection::vec(integers, 0..4)
            .prop_map(Doc::Array)
            .boxed(),
        "j" => (
            any::<i64>(),
            prop::collection::vec(".{0,5}".prop_map(Doc::Text), 0..3),
        )
            .prop_map(|(x, y)| {
                let x = Doc::Number(x.to_string());
                Doc::Object(vec![("y".to_owned(), Doc::Array(y)), ("x".to_owned(), x)])
            })
            .boxed(),
        "l" => prop::collection::vec(any::<u8>(), 0..9)
            .prop_map(|bytes| Doc::Text(base64::engine::general_purpose::STANDARD.encode(bytes)))
            .boxed(),
        _ => any_doc().boxed(),
    }
}

fn any_record() -> impl Strategy<Value = Vec<(String, Doc)>> {
    let member = |name: &'static str| {
        let optional = if name == "b" { 1 } else { 8 };
        prop_oneof![
            optional => Just(None),
            optional => Just(Some(Doc::Null)),
            60 => fitting(name).prop_map(Some),
            2 => any_doc().prop_map(Some),
        ]
        .prop_map(move |doc| doc.map(|doc| (name.to_owned(), doc)))
    };
    let names = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "unknown", "\u{e9}",
    ];
    let members: Vec<_> = names.into_iter().map(member).collect();
    members
        .prop_map(|members| members.into_iter().flatten().collect::<Vec<_>>())
        .prop_shuffle()
}

/// What the column must hold for the document, None if the record must be refused.
fn expected(column_type: &ColumnType, nullable: bool, doc: &Doc, raw: &str) -> Option<Cell> {
    if matches!(doc, Doc::Null) {
        return nullable.then_some(Cell::Null);
    }
    let whole = |text: &str| {
        text.parse::<i64>()
            .ok()
            .filter(|_| !text.contains(['.', 'e', 'E']))
    };
    Some(match (column_type, doc) {
        (ColumnType::Boolean, Doc::Bool(value)) => Cell::Bool(*value),
        (ColumnType::Int64 | ColumnType::TimestampMs, Doc::Number(text)) => {
            Cell::Int(whole(text)?.into())
        }
        (ColumnType::Int32, Doc::Number(text)) => {
            Cell::Int(i32::try_from(whole(text)?).ok()?.into())
        }
        (ColumnType::Float64, Doc::Number(text)) => Cell::Float(
            Some(text.parse::<f64>().unwrap())
                .filter(|f| f.is_finite())?
                .to_bits(),
        ),
        (ColumnType::String, Doc::Text(value)) => text(value),
        (ColumnType::Decimal { .. }, Doc::Number(number) | Doc::Text(number)) => {
            Cell::Int(decimal_10_2(number)?)
        }
        (ColumnType::TimestampMs, Doc::Text(value)) => {
            let time = Some(value)
                .filter(|value| value.len() >= 20)?
                .parse::<jiff::Timestamp>();
            let time = time.ok()?;
            (time.subsec_nanosecond() % 1_000_000 == 0).then_some(())?;
            Cell::Int(time.as_millisecond().into())
        }
        (ColumnType::Date, Doc::Text(value)) => {
            let date = Some(value)
                .filter(|value| value.len() == 10)?
                .parse::<jiff::civil::Date>();
            let since = jiff::civil::date(1970, 1, 1).until(date.ok()?).unwrap();
            Cell::Int(since.get_days().into())
        }
        (ColumnType::Binary, Doc::Text(value)) => Cell::Bytes(
            base64::engine::general_purpose::STANDARD
                .decode(value)
                .ok()?,
        ),
        (ColumnType::Json, _) => text(raw),
        (ColumnType::List(element), Doc::Array(docs)) => {
            let (inner, nullable) = (&element.column_type, element.nullable);
            Cell::List(
                docs.iter()
                    .map(|d| expected(inner, nullable, d, ""))
                    .collect::<Option<_>>()?,
            )
        }
        (ColumnType::Struct(fields), Doc::Object(members)) => {
            let mut cells = BTreeMap::new();
            for field in fields {
                let member = members.iter().find(|(key, _)| *key == field.name);
                let doc = member.map_or(&Doc::Null, |(_, doc)| doc);
                let cell = expected(&field.column_type, field.nullable, doc, "")?;
                cells.insert(field.name.clone(), cell);
            }
            Cell::Struct(cells)
        }
        _ => return None,
    })
}

/// By hand: the digits moved by the exponent, then two places.
fn decimal_10_2(text: &str) -> Option<i128> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let shape_ok = |part: &str| {
        let digits = part.trim_start_matches(['+', '-']);
        part.len() - digits.len() <= 1
            && !digits.is_empty()
            && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let fraction_ok = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    if !shape_ok(whole) || !fraction_ok || !shape_ok(exponent) {
        return None;
    }
    let exponent: i64 = exponent.parse().ok()?;
    let digits: String = [whole, fraction].concat();
    let negative = digits.starts_with('-');
    let digits = digits.trim_start_matches(['+', '-']);
    let mut point = i64::try_from(digits.len() - fraction.len()).unwrap() + exponent;
    let mut digits = digits.to_owned();
    while point < 0 && digits.len() < 2_000 {
        digits.insert(0, '0');
        point += 1;
    }
    while point + 2 > i64::try_from(digits.len()).unwrap() && digits.len() < 2_000 {
        digits.push('0');
    }
    let (kept, cut) = digits.split_at(usize::try_from(point + 2).ok()?.min(digits.len()));
    if cut.bytes().any(|b| b != b'0') {
        return None;
    }
    let kept = kept.trim_start_matches('0');
    if kept.len() > 10 {
        return None;
    }
    let value: i128 = if kept.is_empty() {
        0
    } else {
        kept.parse().unwrap()
    };
    Some(if negative { -value } else { value })
}

/// Decodes the records, checks each against the oracle and the batch against the accepted ones.
fn check(records: &[Vec<(String, Doc)>], mut style: u64) {
    let schema = every_type();
    let mut decoder = JsonDecoder::new(&schema);
    let mut accepted = Vec::new();
    for record in records {
        let raw: Vec<_> = record
            .iter()
            .map(|(_, doc)| render(doc, &mut style))
            .collect();
        let keys: Vec<_> = record
            .iter()
            .map(|(key, _)| render_text(key, &mut style))
            .collect();
        let members = keys
            .iter()
            .zip(&raw)
            .map(|(key, raw)| format!("{key}: {raw}"));
        let value = format!("{{{}}}", members.collect::<Vec<_>>().join(" ,"));
        serde_json::from_str::<serde_json::Value>(&value).expect(&value);
        let row: Option<Vec<Cell>> = schema
            .columns
            .iter()
            .map(|column| {
                let at = record.iter().position(|(key, _)| *key == column.name);
                let (doc, raw) =
                    at.map_or((&Doc::Null, ""), |at| (&record[at].1, raw[at].as_str()));
                expected(&column.column_type, column.nullable, doc, raw)
            })
            .collect();
        let decoded = decoder.decode(value.as_bytes());
        assert_eq!(
            decoded.is_ok(),
            row.is_some(),
            "{value} {decoded:?} {row:?}"
        );
        if let Some(mut row) = row {
            let rest = record
                .iter()
                .enumerate()
                .filter(|(_, (key, _))| key.len() > 1);
            let rest: Vec<_> = rest
                .map(|(at, _)| format!("{}:{}", keys[at], raw[at]))
                .collect();
            row.push(if rest.is_empty() {
                Cell::Null
            } else {
                text(&format!("{{{}}}", rest.join(",")))
            });
            accepted.push(row);
        }
    }
    let columns = decoder.finish().unwrap();
    for (at, row) in accepted.iter().enumerate() {
        let found: Vec<_> = columns.iter().map(|column| cell(column, at)).collect();
        assert_eq!(&found, row);
    }
    assert!(columns.iter().all(|column| column.len() == accepted.len()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn random_records_agree_with_the_oracle(
        records in prop::collection::vec(any_record(), 1..8),
        style in any::<u64>(),
    ) {
        check(&records, style);
    }

    /// With no columns every field is skipped, so that only the grammar decides.
    #[test]
    fn grammar_agrees_with_serde_json_on_mutated_bytes(
        record in any_record(),
        style in any::<u64>(),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 0..4),
    ) {
        let mut value = render(&Doc::Object(record), &mut style.clone()).into_bytes();
        for (at, byte, kind) in mutations {
            let at = at.index(value.len());
            match kind {
                0 => value[at] = byte,
                1 => value.insert(at, byte),
                2 => value[at] = b"\"\\{}[]:,0-.eu \n"[usize::from(byte) % 15],
                _ => value.truncate(at.max(1)),
            }
        }
        let expected = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&value);
        let no_columns = TableSchema::default();
        let found = JsonDecoder::new(&no_columns).decode(&value);
        match expected {
            Err(error) if error.to_string().starts_with("number out of range") => {}
            expected => prop_assert_eq!(found.is_ok(), expected.is_ok(), "{:?} {:?} {:?}", String::from_utf8_lossy(&value), found, expected),
        }
    }

    /// Whatever a bad record was, the rows around it are as if it had not been there.
    #[test]
    fn mutated_records_leave_the_rest_intact(
        records in prop::collection::vec(any_record(), 1..6),
        style in any::<u64>(),
        cut in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let schema = every_type();
        let mut style = style;
        let (mut mixed, mut alone) = (JsonDecoder::new(&schema), JsonDecoder::new(&schema));
        for record in records {
            let value = render(&Doc::Object(record), &mut style).into_bytes();
            let mut broken = value.clone();
            let at = cut.index(broken.len());
            broken[at] = byte;
            for value in [&value[..], &broken, &broken[..at]] {
                if mixed.decode(value).is_ok() {
                    alone.decode(value).unwrap();
                }
            }
        }
        let (mixed, alone) = (mixed.finish().unwrap(), alone.finish().unwrap());
        for (mixed, alone) in mixed.iter().zip(&alone) {
            prop_assert_eq!(Arc::clone(mixed).to_data(), alone.to_data());
        }
    }
}
