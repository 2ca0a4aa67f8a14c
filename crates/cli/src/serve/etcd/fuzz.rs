//! Fuzzers of what an operator writes: files of settings, and values of flags. See docs/fuzzing.md.

use std::{str, time::Duration};

use clap::{Args as _, Command};
use synod_fuzz::{Budget, Corpus, Memory, Target, Verdict, run};

use super::{accept, yaml};
use crate::serve::{file, flags::ServeArgs};

/// Runs a target on inputs that are made of its seeds.
fn fuzz(target: &Target) {
    let corpus = Corpus { inputs: (target.seeds)() };
    let budget = Budget { runs: u64::MAX, time: Duration::from_millis(700) };
    match run(target, &corpus, 1, budget) {
        Ok(report) => println!("{:15} {report}", target.name),
        Err(failure) => panic!("{}: {failure}", target.name),
    }
}

fn of<T>(parsed: Result<Vec<T>, String>) -> Verdict {
    match parsed {
        Ok(entries) => Verdict::Accepted(format!("{} entries", entries.len().min(8))),
        // Of several lines, which show the text, the last one says what is wrong.
        Err(why) => Verdict::Refused(why.lines().last().unwrap_or_default().to_owned()),
    }
}

/// A file as YAML or as TOML.
#[test]
fn files_of_settings() {
    fn settings(input: &[u8]) -> Verdict {
        match input.split_first().map(|(first, text)| (first, str::from_utf8(text))) {
            Some((first, Ok(text))) if first % 2 == 0 => of(yaml::entries(text)),
            Some((_, Ok(text))) => of(file::entries(text)),
            _ => Verdict::Refused("no text".to_owned()),
        }
    }
    let seeds = || {
        let texts = [
            "\0name: 'n1'\ndata-dir:\nsnapshot-count: 5000\npre-vote: true\nlog-outputs: [stderr, /tmp/log]\n",
            "\0client-transport-security:\n  cert-file: a.crt\n  client-cert-auth: false\nsocket-options:\n  reuse-port: true\n",
            "\0grpc-keepalive-min-time: 5000000000\nx: &x [1, 2.5, ~]\ny: *x\n",
            "\x01name = 'n1'\nwindow-max = 8\nbegin-without-all = false\nlisten-client-urls = ['http://a:1', 'http://b:1']\n",
            "\x01election-timeout = '2s'\n[initial-cluster]\nn1 = 'http://a:2'\nn2 = 'http://b:2'\n",
        ];
        texts.map(|text| (text.to_owned(), text.as_bytes().to_vec())).into()
    };
    fuzz(&Target {
        name: "settings-file",
        about: "",
        run: settings,
        seeds,
        memory: Memory::UNLIMITED,
        words: &[
            b": ", b"\n  ", b"- ", b"[", b"]", b"{", b"}", b"&x ", b"*x", b"'", b"\"", b" = ", b"[[", b"]]",
            b"|\n",
        ],
    });
}

/// A value of each flag, which its own parser reads.
#[test]
fn values_of_flags() {
    fn values(input: &[u8]) -> Verdict {
        thread_local! {
            static SERVE: Command = accept(ServeArgs::augment_args(Command::new("serve")));
        }
        let Some((&number, text)) = input.split_first() else { return Verdict::Refused("empty".to_owned()) };
        let Ok(text) = str::from_utf8(text) else { return Verdict::Refused("no text".to_owned()) };
        SERVE.with(|serve| {
            let names: Vec<_> = serve.get_arguments().filter_map(|arg| arg.get_long()).collect();
            let name = names[usize::from(number) % names.len()];
            match file::check(serve, name, text) {
                Ok(()) => Verdict::Accepted(name.to_owned()),
                Err(why) => Verdict::Refused(format!("{name} {why}")),
            }
        })
    }
    let seeds = || {
        let texts = [
            "1",
            "true",
            "5s",
            "1h30m",
            "64MiB",
            "http://127.0.0.1:2379",
            "n1=http://a:1,n2=http://b:2",
            "merge:3",
        ];
        let seed = |number: u8, text: &str| [&[number], text.as_bytes()].concat();
        // The whole command is made for each of them, so they are few.
        let numbers = (0..=255).step_by(5).zip(texts.iter().cycle());
        numbers.map(|(number, text)| (format!("{number} {text}"), seed(number, text))).collect()
    };
    fuzz(&Target {
        name: "settings-flags",
        about: "",
        run: values,
        seeds,
        memory: Memory::UNLIMITED,
        words: &[b"ns", b"ms", b"GiB", b"e99", b"-", b".", b"[::1]", b"unix://", b"https://", b"file://"],
    });
}
