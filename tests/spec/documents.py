"""Documents as people write them, what each one says, and why another is refused."""

from typing import Any

from app.spec.reading import MAX_DEPTH, MAX_NODES

BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n".encode()
    for i in range(8)
)
MERGE_BOMB = b"x0: &x0 {a: 1}\n" + b"".join(
    f"x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 9)}]}}\n".encode() for i in range(1, 9)
)


def nested(levels: int) -> bytes:
    return b'{"a": ' + b"[" * levels + b"1" + b"]" * levels + b"}"


def list_of(levels: int) -> Any:
    return [list_of(levels - 1)] if levels else 1


GOOD_JSON: dict[str, tuple[bytes, Any]] = {
    "every kind": (b'{"a": [1, -2.5, true, null, "\xc3\xa4"], "b": {}}',
                   {"a": [1, -2.5, True, None, "ä"], "b": {}}),
    "a pair of surrogates": (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
    "Windows line ends and tabs": (b'{\r\n\t"a": 1,\r\n\t"b": 2\r\n}\r\n', {"a": 1, "b": 2}),
    "a small number": (b'{"a": 1e-3}', {"a": 0.001}),
    "a negative zero": (b'{"a": -0.0}', {"a": -0.0}),
    "a large whole number": (b'{"a": 123456789012345678901234567890}',
                             {"a": 123456789012345678901234567890}),
    "as deep as may be": (nested(MAX_DEPTH - 1), {"a": list_of(MAX_DEPTH - 1)}),
    "a control character that is escaped": (b'{"a": "\\u0001"}', {"a": "\x01"}),
}  # fmt: skip

BAD_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "Expecting value at line 1, column 1"),
    "blank": (b"  \n", "Expecting value at line 2, column 1"),
    "cut off": (b'{"name": "a', "Unterminated string"),
    "NaN": (b'{"lr": NaN}', "NaN is not a JSON number"),
    "infinity": (b'{"lr": -Infinity}', "-Infinity is not a JSON number"),
    "beyond a double": (b'{"lr": 1e400}', "1e400 is beyond the range of a double"),
    "too many digits": (b"[" + b"9" * 5000 + b"]", "more than 4300 digits"),
    "half a surrogate pair": (b'{"name": "\\ud800"}', "text at name holds half of a surrogate"),
    "half a surrogate pair as key": (b'{"\\udfff": 1}', "half of a surrogate pair"),
    "half a surrogate pair, not escaped": (b'{"a": "\xed\xa0\x80"}', "it is not UTF-8"),
    "NUL": (b'{"a": [1, "a\\u0000b"]}', "a text at a.1 holds the character NUL"),
    "NUL, not escaped": (b'{"a": "\x00"}', "Invalid control character at line 1, column 8"),
    "a line end in a text": (b'{"a": "x\ny"}', "Invalid control character at line 1, column 9"),
    "a key twice": (b'{"lr": 1, "lr": 2}', "the key 'lr' is given twice"),
    "a key twice, deep inside": (b'{"a": [{"lr": 1, "lr": 2}]}', "the key 'lr' is given twice"),
    "too deep": (nested(MAX_DEPTH + 1), f"deeper than {MAX_DEPTH} levels"),
    "far too deep": (b"[" * 100_000, f"deeper than {MAX_DEPTH} levels"),
    "not UTF-8": (b'{"name": "\xff"}', "it is not UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "it is not UTF-8"),
    "a byte order mark": (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
    "too many values": (b'{"a": [' + b"0," * MAX_NODES + b"0]}", f"than {MAX_NODES} values"),
    "trailing words": (b"{} {}", "Extra data at line 1, column 4"),
    "a comment": (b'{"a": 1} // one', "Extra data at line 1, column 10"),
    "a trailing comma": (b'{"a": 1,}', "at line 1, column 9"),
    "single quotes": (b"{'a': 1}", "at line 1, column 2"),
    "a leading zero": (b'{"a": 012}', "at line 1, column 8"),
}

GOOD_YAML: dict[str, tuple[bytes, Any]] = {
    "words of YAML 1.1": (b"a: [off, on, yes, no, y]", {"a": ["off", "on", "yes", "no", "y"]}),
    "words of YAML 1.2": (b"a: [true, False, TRUE, null, ~, ]",
                          {"a": [True, False, True, None, None]}),
    "numbers": (b"a: [1e-3, 1E3, 0o17, 012, 0x1F, .5, 1., +1, -0, 08]",
                {"a": [0.001, 1000.0, 15, 12, 31, 0.5, 1.0, 1, 0, 8]}),
    "a clock": (b"a: 190:20:30", {"a": "190:20:30"}),
    "a large whole number": (b"a: 123456789012345678901234567890",
                             {"a": 123456789012345678901234567890}),
    "dates": (b"a: [2024-01-31, 2024-01-31T10:00:00Z]\n2024-01-31: b",
              {"a": ["2024-01-31", "2024-01-31T10:00:00Z"], "2024-01-31": "b"}),
    "an alias": (b"a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
    "an anchor that is set again": (b"a: &x 1\nb: &x 2\nc: *x\n", {"a": 1, "b": 2, "c": 2}),
    "an alias as key": (b"a: &k x\n*k : 1\n", {"a": "x", "x": 1}),
    "tags of JSON's kinds": (b'a: [!!str 5, !!int "5", !!float 5, !!bool "true", !!null ""]',
                             {"a": ["5", 5, 5.0, True, None]}),
    "a quoted key": (b'"1": a', {"1": "a"}),
    "comments": (b"# one\na: 1  # two\n# three\n", {"a": 1}),
    "Windows line ends": (b"a: 1\r\nb: |\r\n  x\r\n  y\r\n", {"a": 1, "b": "x\ny\n"}),
    "a byte order mark": (b"\xef\xbb\xbfa: 1", {"a": 1}),
    "JSON": (b'{"a": "\\u00e9\\/", "b": [1, {"c": null}]}', {"a": "é/", "b": [1, {"c": None}]}),
    "a start and an end": (b"%YAML 1.2\n---\na: off\n...\n", {"a": "off"}),
    "as deep as may be": (nested(MAX_DEPTH - 1), {"a": list_of(MAX_DEPTH - 1)}),
}  # fmt: skip

BAD_YAML: dict[str, tuple[bytes, str]] = {
    "not closed": (b"name: [a", "at line 1, column 9"),
    "a key twice": (b"lr: 1\nlr: 2\n", 'duplicate key "lr" with value "2"'),
    "a key twice in one line": (b"a: {b: 1, b: 2}", "at line 1, column 11"),
    "NaN": (b"lr: .nan\n", "a number at lr is not finite"),
    "infinity": (b"a: {lr: [1, -.inf]}\n", "a number at a.lr.1 is not finite"),
    "beyond a double": (b"lr: 1e400\n", "a number at lr is not finite"),
    "too many digits": (b"a: " + b"9" * 5000, "is not a whole number at line 1, column 4"),
    "too many digits of another base": (b"a: 0x" + b"f" * 5000, "more than 4300 digits"),
    "a number as key": (b"1: a\n", "a key is not text; quote it at line 1, column 1"),
    "true as key": (b"a: {true: a}\n", "a key is not text; quote it at line 1, column 5"),
    "nothing as key": (b": a\n", "a key is not text"),
    "a list as key": (b"? [a]\n: 1\n", "a key is not text; quote it at line 1, column 3"),
    "binary": (b"name: !!binary aGk=\n", "kind binary has no counterpart in JSON at line 1"),
    "a set": (b"name: !!set {a, b}\n", "kind set has no counterpart"),
    "an ordered mapping": (b"name: !!omap [a: 1]\n", "kind omap has no counterpart"),
    "pairs": (b"name: !!pairs [a: 1]\n", "kind pairs has no counterpart"),
    "a tag of one's own": (b"name: !mine 5\n", "kind !mine has no counterpart"),
    "a text that is a list": (b"name: !!str [a]\n", "kind str has no counterpart"),
    "a whole number that is none": (b"a: !!int x\n", "'x' is not a whole number at line 1"),
    "a whole number that is empty": (b'a: !!int ""\n', "'' is not a whole number at line 1"),
    "a number that is none": (b'a: !!float ""\n', "'' is not a number at line 1"),
    "a truth that is none": (b"a: !!bool maybe\n", "'maybe' is not a bool of YAML 1.2"),
    "something as nothing": (b"a: !!null x\n", "'x' is not a null of YAML 1.2"),
    "an object of Python": (b"name: !!python/object/apply:os.system [ls]\n", "no counterpart"),
    "an alias of itself": (b"a: &a [*a]\n", "or an alias refers to itself"),
    "a bomb of aliases": (BOMB, f"than {MAX_NODES} values"),
    "a merge key": (b"base: &b {x: 1}\nuse: {<<: *b}\n", "no merge key `<<`; write out"),
    "a bomb of merge keys": (MERGE_BOMB, "no merge key"),
    "a bomb of keys": (b"a: &a [x, x]\n? [*a, *a]\n: 1\n", "a key is not text"),
    "a long text again and again":
        (b"a: &a " + b"x" * 20_000 + b"\nb: [" + b"*a, " * 100 + b"]\n", "characters"),
    "too deep": (nested(MAX_DEPTH + 1), f"deeper than {MAX_DEPTH} levels"),
    "far too deep": (b"[" * 5000, f"deeper than {MAX_DEPTH} levels"),
    "not UTF-8": (b"name: \xff\n", "it is not UTF-8"),
    "UTF-16": ("a: 1".encode("utf-16"), "it is not UTF-8"),
    "two documents": (b"a: 1\n---\nb: 2\n", "another document at line 2"),
    "a tab as indentation": (b"data:\n\tdataset: x\n", "at line 2, column 1"),
    "an unknown anchor": (b"a: *b\n", "undefined alias 'b' at line 1, column 4"),
    "a control character": (b"a: \x01\n", "unacceptable character #x0001"),
    "NUL": (b'a: "x\\0"\n', "a text at a holds the character NUL"),
    "half a surrogate pair": (b'a: "\\ud800"\n', "a text at a holds half of a surrogate pair"),
    "half a surrogate pair as key": (b'"\\ud800": 1\n"\\ud800": 2\n', r'duplicate key "\ud800"'),
    "YAML 1.1": (b"# old\n%YAML 1.1\n---\na: off\n", "it says that it is YAML 1.1"),
    "YAML of the future": (b"%YAML 1.3\n---\na: off\n", "it says that it is YAML 1.3"),
    "too many values": (b"a: [" + b"0," * MAX_NODES + b"0]", f"than {MAX_NODES} values"),
}  # fmt: skip

GOOD = {
    **{f"{name} in JSON": ("json", *case) for name, case in GOOD_JSON.items()},
    **{f"{name} in YAML": ("yaml", *case) for name, case in GOOD_YAML.items()},
}
"""(Format, bytes, value) of documents that are read."""

BAD = {
    **{f"{name} in JSON": ("json", *case) for name, case in BAD_JSON.items()},
    **{f"{name} in YAML": ("yaml", *case) for name, case in BAD_YAML.items()},
}
"""(Format, bytes, words of the refusal) of documents that are not."""

BAD_IN_SHORT = {name: case for name, case in BAD.items() if len(case[1]) < 4_000}
"""Without those that take the reader long: for whoever calls it, and tells what it said."""
