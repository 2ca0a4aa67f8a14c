//! Watches over connections that break.

use std::time::Duration;

use crate::common::Pair;
use synod_client::{
    Client, Error,
    api::{CompactionRequest, PutRequest, WatchCreateRequest},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};

const SOON: Duration = Duration::from_secs(20);

/// A way to a server that can be cut.
struct Way {
    url: String,
    /// How often it was cut.
    cuts: watch::Sender<u32>,
    /// How often somebody took it.
    taken: watch::Receiver<u32>,
}

impl Way {
    async fn to(url: &str) -> Way {
        let server = url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ((cuts, cut), (take, taken)) = (watch::channel(0), watch::channel(0));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                take.send_modify(|count| *count += 1);
                let (server, mut cut) = (server.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Way { url, cuts, taken }
    }

    fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }
}

async fn put(client: &Client, value: usize) -> i64 {
    let put = PutRequest { key: "k".into(), value: value.to_string().into(), ..Default::default() };
    client.put(put).await.unwrap().header.unwrap().revision
}

/// Each connection to either endpoint breaks again and again, in the middle of what it brings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_where_its_connection_broke() {
    let pair = Pair::watched();
    let writer = Client::new(pair.config()).unwrap();
    let ways = [Way::to(&pair.urls[0]).await, Way::to(&pair.urls[1]).await];
    let watches = || {
        let urls = ways.each_ref().map(|way| way.url.clone());
        Client::new(pair.config_with(|config| config.endpoints = urls.to_vec())).unwrap()
    };
    let before = put(&writer, 0).await;
    let create = |start_revision| WatchCreateRequest {
        key: "k".into(),
        start_revision,
        progress_notify: true,
        ..Default::default()
    };
    const PUTS: usize = 3_000;
    let (mut watchers, mut began) = (Vec::new(), Vec::new());
    // One from the past, and one from the present on.
    for start in [before, 0] {
        let (created, is_created) = tokio::sync::oneshot::channel();
        began.push(is_created);
        let (mut watch, mut created) = (watches().watch(create(start)), Some(created));
        watchers.push(tokio::spawn(async move {
            let (mut told, mut streams) = (Vec::new(), 0);
            while told.last() != Some(&PUTS) {
                let response = timeout(SOON, watch.next()).await.expect("in time").unwrap().unwrap();
                streams += usize::from(response.created);
                created.take().into_iter().for_each(|created| created.send(()).unwrap());
                let values = response.events.iter().map(|event| event.kv.as_ref().unwrap().value.clone());
                told.extend(
                    values.map(|value| String::from_utf8(value.to_vec()).unwrap().parse::<usize>().unwrap()),
                );
            }
            (told, streams)
        }));
    }
    for began in began {
        timeout(SOON, began).await.unwrap().unwrap();
    }
    for value in 1..=PUTS {
        put(&writer, value).await;
        if value % 100 == 0 {
            ways.iter().for_each(Way::cut);
            sleep(Duration::from_millis(20)).await;
        }
    }
    for (first, watcher) in [0, 1].into_iter().zip(watchers) {
        let (told, streams): (Vec<usize>, _) = watcher.await.unwrap();
        assert!(told.iter().copied().eq(first..=PUTS), "{} events from {first}", told.len());
        assert!(streams > 5, "it went on only {streams} times");
    }
    assert!(ways.iter().all(|way| *way.taken.borrow() > 2), "both endpoints are used");
}

/// What was compacted while nobody could be reached cannot be told: the watch says so and ends.
#[tokio::test]
async fn a_watch_over_a_compaction_says_that_it_has_ended() {
    let pair = Pair::watched();
    let writer = Client::new(pair.config()).unwrap();
    let way = Way::to(&pair.urls[0]).await;
    let client = Client::new(pair.config_with(|config| config.endpoints = vec![way.url.clone()])).unwrap();
    let mut watch = client.watch(WatchCreateRequest { key: "k".into(), ..Default::default() });
    assert!(timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap().created);
    way.cut();
    // Nobody asks for the next response, so the watch does not go on yet.
    sleep(Duration::from_millis(50)).await;
    put(&writer, 1).await;
    let revision = put(&writer, 2).await;
    writer.compact(CompactionRequest { revision, ..Default::default() }).await.unwrap();
    let next = async {
        loop {
            let response = watch.next().await?.expect("it says why it ends");
            if response.canceled {
                return Ok::<_, Error>(response);
            }
            assert!(response.events.is_empty());
        }
    };
    let ended = timeout(SOON, next).await.expect("in time").unwrap();
    assert_eq!(ended.compact_revision, revision);
    assert!(watch.next().await.unwrap().is_none());
}
