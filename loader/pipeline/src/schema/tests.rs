use super::*;

fn table(columns: &[(&str, &str)]) -> TableSchema {
    let column = |(name, text): &(&str, &str)| Column::new(*name, text.parse().unwrap());
    TableSchema {
        columns: columns.iter().map(column).collect(),
        ..TableSchema::default()
    }
}

#[test]
fn type_text_round_trips() {
    for (text, shown) in [
        ("int64", "int64"),
        (" Decimal( 38 , 10 ) ", "decimal(38,10)"),
        (
            "list<list<string not null> not null>",
            "list<list<string not null> not null>",
        ),
        (
            "struct<id:int64 not null,`a b``c`:list<json>>",
            "struct<id: int64 not null, `a b``c`: list<json>>",
        ),
        ("timestamp_us", "timestamp_us"),
    ] {
        let parsed: ColumnType = text.parse().unwrap();
        assert_eq!(parsed.to_string(), shown);
        assert_eq!(shown.parse::<ColumnType>().unwrap(), parsed);
    }
}

#[test]
fn wrong_types_are_refused_saying_where() {
    for (text, expected) in [
        ("int", "`int` is none of boolean"),
        ("list<int64", "expected `>`"),
        ("decimal(38)", "expected `,`"),
        ("decimal(300,1)", "`300` is not a number of digits"),
        ("struct<>", "expected a field name"),
        ("struct<a int64>", "expected `:`"),
        ("int64 null", "nothing may follow"),
        ("list<int64 not>", "expected `not null`"),
        ("struct<`a: int64>", "a backtick is not closed"),
    ] {
        let error = text.parse::<ColumnType>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let deep = format!("{}int64{}", "list<".repeat(40), ">".repeat(40));
    assert!(
        deep.parse::<ColumnType>()
            .unwrap_err()
            .to_string()
            .contains("nested more than 32")
    );
}

#[test]
fn job_file_and_manifest_forms_agree() {
    let json = r#"{"columns":[{"name":"id","field":"ID","type":"int64","nullable":false},{"name":"t","type":"list<string>"}]}"#;
    let schema: TableSchema = serde_json::from_str(json).unwrap();
    assert!(schema.coordinates && schema.columns[1].nullable);
    assert_eq!(schema.columns[0].json_key(), "ID");
    let again = serde_json::to_string(&schema).unwrap();
    assert_eq!(serde_json::from_str::<TableSchema>(&again).unwrap(), schema);
    let typo = json.replace("nullable", "nulable");
    let error = serde_json::from_str::<TableSchema>(&typo)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nulable"), "{error}");
}

#[test]
fn every_problem_of_a_schema_is_reported() {
    let mut schema = table(&[
        ("Hour", "int32"),
        ("id", "int64"),
        ("ID", "string"),
        ("_offset", "int64"),
        ("", "string"),
        ("money", "decimal(39,2)"),
        ("cents", "list<decimal(3,4)>"),
        ("pair", "struct<a: int64, A: int64>"),
        ("other", "string"),
    ]);
    schema.columns[8].field = Some("id".to_owned());
    schema.rest_column = Some("DT".to_owned());
    let problems = schema.validate(["dt", "hour", "run"]).unwrap_err();
    let text = problems.to_string();
    for expected in [
        "column `Hour` has the name of a partition key",
        "column `DT` has the name of a partition key",
        "column `ID` is declared twice",
        "column `_offset` has the name of a coordinate",
        "column 5 has an empty name",
        "column `money`: decimal(39,2) needs",
        "column `cents[]`: decimal(3,4) needs",
        "column `pair.A` is declared twice",
        "columns `id` and `other` both read the field `id`",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(problems.0.len(), 9, "{text}");
    table(&[("id", "int64")]).validate(["dt"]).unwrap();
    let nothing = TableSchema {
        coordinates: false,
        ..TableSchema::default()
    };
    assert_eq!(
        nothing.validate([]).unwrap_err().0,
        [SchemaProblem::NoColumns]
    );
    let mut bare = table(&[("_offset", "int64")]);
    bare.coordinates = false;
    bare.validate([]).unwrap();
}

#[test]
fn arrow_types_carry_their_meaning() {
    let schema = table(&[
        ("t", "timestamp_us"),
        ("d", "decimal(10,2)"),
        ("l", "list<int32>"),
    ]);
    let arrow = schema.to_arrow();
    let names: Vec<_> = arrow
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    let expected = [
        "t",
        "d",
        "l",
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
        "_key",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        *arrow.field(0).data_type(),
        timestamp(TimeUnit::Microsecond)
    );
    assert_eq!(*arrow.field(1).data_type(), DataType::Decimal128(10, 2));
    assert!(!arrow.field(5).is_nullable() && arrow.field(6).is_nullable());
}

#[test]
fn inference_merges_samples_and_falls_back_to_json() {
    let samples: [&[u8]; 6] = [
        br#"{"id":1,"price":2,"tags":[],"mixed":1,"gone":null,"big":1,"user":{"name":"x"}}"#,
        br#"{"id":-5,"price":2.5,"tags":["a"],"mixed":"x","big":9223372036854775808,"ok":true}"#,
        br#"{"user":{"age":3},"empty":{},"tags":[null],"deep":[{"a":1},{"b":[1.5]}]}"#,
        b"[1]",
        b"{\"id\":1}{}",
        br#"{"id":1,"id":2}"#,
    ];
    let inferred = infer(samples);
    assert_eq!((inferred.used, inferred.unusable), (3, 3));
    let shown: Vec<_> = inferred
        .columns
        .iter()
        .map(|column| format!("{} {}", column.name, column.column_type))
        .collect();
    assert_eq!(
        shown,
        [
            "id int64",
            "price float64",
            "tags list<string>",
            "mixed json",
            "gone json",
            "big json",
            "user struct<name: string, age: int64>",
            "ok boolean",
            "empty json",
            "deep list<struct<a: int64, b: list<float64>>>",
        ]
    );
    assert!(inferred.columns.iter().all(|column| column.nullable));
    assert_eq!(infer(samples), inferred);
}

#[test]
fn inference_takes_wide_objects_for_maps() {
    let members: Vec<String> = (0..2_000).map(|n| format!("\"user-{n}\":1")).collect();
    let sample = format!("{{\"by_user\":{{{}}}}}", members.join(","));
    let inferred = infer([sample.as_bytes()]);
    assert_eq!(inferred.columns, [Column::new("by_user", ColumnType::Json)]);
}

#[test]
fn inferred_columns_decode_their_own_samples() {
    let samples = [
        r#"{"a":1,"b":[1,2.5],"c":{"d":null,"e":[{"f":"x"}]},"g":[]}"#,
        r#"{"a":null,"b":null,"c":{"d":[],"e":[]},"g":[1,"x"]}"#,
    ];
    let columns = infer(samples.map(str::as_bytes)).columns;
    let schema = TableSchema {
        columns,
        ..TableSchema::default()
    };
    schema.validate([]).unwrap();
    let mut decoder = crate::decode::json::JsonDecoder::new(&schema);
    for sample in samples {
        assert_eq!(decoder.decode(sample.as_bytes()), Ok(0));
    }
    assert_eq!(decoder.finish().unwrap().len(), 4);
}

#[test]
fn allowed_changes_are_listed_and_others_refused_by_name() {
    let old = table(&[
        ("a", "int32"),
        ("b", "decimal(5,2)"),
        ("c", "struct<x: int32>"),
        ("d", "date"),
    ]);
    let mut new = table(&[
        ("c", "struct<x: int64, y: list<int64>>"),
        ("b", "decimal(7,2)"),
        ("a", "int64"),
        ("e", "string"),
    ]);
    new.rest_column = Some("rest".to_owned());
    let changes: Vec<_> = check_change(&old, &new)
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        changes,
        [
            "column `c.x` widened from int32 to int64",
            "column `c.y` added",
            "column `b` widened from decimal(5,2) to decimal(7,2)",
            "column `a` widened from int32 to int64",
            "column `e` added",
            "column `d` dropped",
            "column `rest` added",
        ]
    );
    for (from, to) in [
        ("int64", "int32"),
        ("int64", "float64"),
        ("decimal(5,2)", "decimal(5,3)"),
        ("decimal(5,2)", "decimal(7,3)"),
        ("decimal(7,2)", "decimal(6,2)"),
        ("string", "json"),
        ("timestamp_ms", "timestamp_us"),
        ("list<int64>", "list<string>"),
    ] {
        let error = check_change(&table(&[("v", from)]), &table(&[("v", to)])).unwrap_err();
        assert!(
            error.to_string().contains("column `v"),
            "{from} {to}: {error}"
        );
    }
    let mut required = table(&[("a", "int32")]);
    required.columns[0].nullable = false;
    check_change(&required, &table(&[("a", "int32")])).unwrap();
    check_change(&table(&[("a", "int32")]), &required).unwrap_err();
    check_change(&TableSchema::default(), &required).unwrap_err();
}
