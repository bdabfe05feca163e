"""Texts that are awkward as values of a partition column: in a path, in a URL, in JSON, or to Hive."""

TEXTS = [
    *("", "a b", " before", "after ", "a/b", "100%", "%41", "%2F", "a=b", "a+b", "#x?y", ".", "..", "back\\slash"),
    *('it\'s "quoted"', "tab\t", "line\n", "\u0001\u007f", "[a]{b}^|~`", "a:b*c<d>", "a&b;c,d$e!@(f)", "null"),
    *("ü€", "日本", "😀", "x" * 300, "日" * 100, "-0", "true", "2026-01-01"),
]
