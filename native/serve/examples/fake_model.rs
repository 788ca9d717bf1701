//! A server without a model, for trying out clients: `cargo run --example fake_model -- GRPC_PORT HTTP_PORT
//! [TOKEN]`.

#[path = "../tests/all/rig/fake.rs"]
mod fake;

use std::sync::Arc;

use streamlearn_serve::inputs::Limits;
use streamlearn_serve::protocol::{Door, DoorSettings, Secret, Token, every_kind, serve_grpc, serve_http};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut port = || arguments.next().unwrap_or_else(|| "0".to_owned());
    let (grpc, http) = (format!("127.0.0.1:{}", port()), format!("127.0.0.1:{}", port()));
    let token = arguments.next().map(Secret::of_header).transpose()?.map(Token::from);
    let limits = Limits { candidates_max: 1024, values_max: 1 << 20, message_bytes_max: 4 << 20 };
    let scoring = Arc::new(fake::Fake::new(every_kind(limits)));
    let door = Arc::new(Door::new(DoorSettings { token, ..DoorSettings::default() })?);
    let (grpc, http) = (TcpListener::bind(grpc).await?, TcpListener::bind(http).await?);
    println!("grpc {} http {}", grpc.local_addr()?, http.local_addr()?);
    let (stop, stopped) = tokio::sync::watch::channel(());
    let until = |mut stopped: tokio::sync::watch::Receiver<()>| async move {
        // Either the sender is dropped or it signals; both mean stop.
        let _ = stopped.changed().await;
    };
    let grpc = serve_grpc(grpc, scoring.clone(), door.clone(), until(stopped.clone()));
    let http = serve_http(http, scoring, door, until(stopped));
    let stopping = async {
        tokio::signal::ctrl_c().await?;
        drop(stop);
        Ok::<(), std::io::Error>(())
    };
    tokio::try_join!(grpc, http, stopping)?;
    Ok(())
}
