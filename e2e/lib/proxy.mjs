// A proxy to a database whose connections can be cut and restored.
import { once } from "node:events";
import net from "node:net";

// proxy starts a proxy to a PostgreSQL server. It returns the proxy's address and the functions cut and mend.
export async function proxy(address) {
  const there = new URL(address);
  const open = new Set();
  let whole = true;
  const server = net.createServer((near) => {
    if (!whole) { near.destroy(); return; }
    const far = net.connect(Number(there.port), there.hostname);
    for (const [one, other] of [[near, far], [far, near]]) {
      open.add(one);
      one.on("error", () => other.destroy()).on("close", () => { open.delete(one); other.destroy(); }).pipe(other);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const database = new URL(address);
  database.port = String(server.address().port);
  return {
    database: database.href,
    cut() { whole = false; for (const one of open) one.destroy(); },
    mend() { whole = true; },
    async stop() { this.cut(); server.close(); await once(server, "close"); },
  };
}
