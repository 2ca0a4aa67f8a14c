//! What a check sees of a source file by its text: code without comments and literals, code without tests, functions.

use super::tree::Tree;

/// The code of a file: comments, and what stands in literals, are spaces. Lines and columns (in bytes) stay.
pub fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    while code.len() < bytes.len() {
        let at = code.len();
        let end = at + opaque(&bytes[at..], at.checked_sub(1).map(|before| bytes[before]));
        if end == at {
            code.push(bytes[at]);
        }
        code.extend(bytes[at..end].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
    }
    // Whole characters outside of comments and literals, whole spaces inside.
    String::from_utf8(code).expect("a comment or literal ends where a character does")
}

/// The length of the comment or literal that begins here; 0 if none does.
fn opaque(bytes: &[u8], before: Option<u8>) -> usize {
    let in_name = before.is_some_and(|it| it.is_ascii_alphanumeric() || it == b'_');
    match bytes {
        [b'/', b'/', ..] => bytes.iter().position(|it| *it == b'\n').unwrap_or(bytes.len()),
        [b'/', b'*', ..] => block_comment(bytes),
        [b'"', ..] => string(bytes),
        [b'\'', b'\\', rest @ ..] => {
            3 + rest[1..].iter().position(|it| *it == b'\'').map_or(rest.len(), |at| at + 1)
        }
        [b'\'', first, rest @ ..] => {
            // One character, of up to four bytes, and another quote; else it is a lifetime.
            let length =
                if *first < 0x80 { 1 } else { 1 + rest.iter().take_while(|it| **it & 0xc0 == 0x80).count() };
            if bytes.get(1 + length) == Some(&b'\'') { length + 2 } else { 0 }
        }
        [b'r' | b'b' | b'c', ..] if !in_name => {
            let prefix = bytes.iter().take(2).take_while(|it| b"bcr".contains(it)).count();
            if bytes[..prefix].ends_with(b"r") { raw_string(bytes, prefix) } else { 0 }
        }
        _ => 0,
    }
}

fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A string without escapes: `prefix` bytes, hashes, and quotes with as many hashes behind. 0 if it is none.
fn raw_string(bytes: &[u8], prefix: usize) -> usize {
    let hashes = bytes[prefix..].iter().take_while(|it| **it == b'#').count();
    let start = prefix + hashes;
    if bytes.get(start) != Some(&b'"') {
        return 0;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let found = bytes[start + 1..].windows(end.len()).position(|it| it == end);
    found.map_or(bytes.len(), |at| start + 1 + at + end.len())
}

/// The number of the line, from 1 on, on which this byte stands.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].bytes().filter(|byte| *byte == b'\n').count()
}

/// Whether this can be a part of a name.
pub fn in_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Where `text` has the word, and not only as a part of longer ones.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let places = text.match_indices(word).map(|(at, _)| at);
    places.filter(move |at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    pub name: &'a str,
    /// The line of its head, from 1 on.
    pub line: usize,
    /// Lines of code between its braces: neither comments nor empty ones.
    pub length: usize,
}

/// The functions in the `code` of a file. The length of one that holds another counts both.
pub fn functions(code: &str) -> Vec<Function<'_>> {
    let found = words(code, "fn").filter_map(|at| {
        let rest = code[at + 2..].trim_start();
        let name = rest.split(|it| !in_word(it)).next().filter(|name| !name.is_empty())?;
        let (open, close) = body(code, at)?;
        let length = code[open + 1..close].lines().filter(|line| !line.trim().is_empty()).count();
        Some(Function { name, line: line_of(code, at), length })
    });
    found.collect()
}

/// The braces of the item that begins at `at`, if it has a body.
fn body(code: &str, at: usize) -> Option<(usize, usize)> {
    let (mut open, mut depth, mut braces) = (None, 0_i32, 0_i32);
    for (place, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 && open.is_none() => return None,
            b'{' => {
                // One in brackets of the head is a constant there.
                if depth == 0 && open.is_none() {
                    open = Some((place, braces));
                }
                braces += 1;
            }
            b'}' => {
                braces -= 1;
                if let Some((open, outside)) = open
                    && braces == outside
                {
                    return Some((open, place));
                }
            }
            _ => {}
        }
    }
    None
}

/// The `code` of a file without the items that only tests have. Lines stay.
pub fn without_tests(code: &str) -> String {
    let mut kept = code.as_bytes().to_vec();
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let start = at + attribute.len();
        let end_of_statement = || code[start..].find(';').map_or(code.len(), |it| start + it + 1);
        let end = body(code, start).map_or_else(end_of_statement, |(_, close)| close + 1);
        kept[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    String::from_utf8(kept).expect("an item ends where a character does")
}

/// The sources of a crate that are built without tests, each with its text and its code without tests.
pub fn shipped<'a>(tree: &'a Tree, room: &str) -> Vec<(&'a str, &'a str, String)> {
    let folder = format!("crates/{room}/src");
    let sources: Vec<_> = tree.below(&folder).filter(|(path, _)| path.ends_with(".rs")).collect();
    let of_tests: Vec<_> = sources.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let is_shipped = |path: &str| {
        let module = path.trim_end_matches(".rs");
        !of_tests.iter().any(|it| module == it || module.starts_with(&format!("{it}/")))
    };
    let shipped = sources.into_iter().filter(|(path, _)| is_shipped(path));
    shipped.map(|(path, text)| (path, text, without_tests(&code(text)))).collect()
}

/// The paths, without their ends, of modules that a file declares for tests alone.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = match name.trim_end_matches(".rs") {
        "lib" | "main" | "mod" => folder.to_owned(),
        module => format!("{folder}/{module}"),
    };
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let module = pair[1].rsplit_once("mod ")?.1.strip_suffix(';')?;
        Some(format!("{folder}/{module}"))
    });
    declared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        for (text, expected) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ */ d", "a                 d"),
            (r#"f("a\"b", 'c')"#, "f(      ,    )"),
            ("f(r#\"a\"b\"#)", "f(        )"),
            ("br\"\\\" x", "      x"),
            ("for 'a in b'", "for 'a in b'"),
            (r"'\'' + '\u{1}' + x", "     +         + x"),
            ("'é' y", "     y"),
            ("rust(\"é\")", "rust(    )"),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }

    #[test]
    fn functions_are_found_and_measured() {
        let text = "fn none();\nfn a(x: [u8; { 2 }]) -> u8 {\n    // Why.\n\n    if x {\n        1\n    }\n}\n\
                    impl B { fn short(&self) { self.c(\"}\") } }\nlet f: fn(u8) = g;\n";
        let found = functions(&code(text))
            .iter()
            .map(|it| (it.name.to_owned(), it.line, it.length))
            .collect::<Vec<_>>();
        assert_eq!(found, [("a".to_owned(), 2, 3), ("short".to_owned(), 9, 1)]);
    }

    #[test]
    fn what_only_tests_have_is_left_out() {
        let text = "use a;\n#[cfg(test)]\nuse b;\n#[cfg(test)]\nfn c() {\n    d;\n}\nfn e() {}\n";
        assert_eq!(
            without_tests(text).split_whitespace().collect::<Vec<_>>(),
            ["use", "a;", "fn", "e()", "{}"]
        );
        let tree = Tree::of(&[
            ("crates/kv/src/lib.rs", "#[cfg(test)]\nmod fixed;\nmod a;\n"),
            ("crates/kv/src/fixed.rs", ""),
            ("crates/kv/src/fixed/more.rs", ""),
            ("crates/kv/src/a.rs", "#[cfg(test)]\npub(crate) mod tests;\n"),
            ("crates/kv/src/a/tests.rs", ""),
            ("crates/kv/src/a/fixed.rs", ""),
        ]);
        let paths: Vec<_> = shipped(&tree, "kv").iter().map(|it| it.0).collect();
        assert_eq!(paths, ["crates/kv/src/a.rs", "crates/kv/src/a/fixed.rs", "crates/kv/src/lib.rs"]);
    }
}
