// Keeps the page up to date: it fetches the page again and updates what differs. Input and open details are preserved. Such elements, or
// an ancestor, need an id, because otherwise they could be mistaken for a neighbour. Scripts that must know of an update listen to the
// document's "renewed" event.
import { $, api } from "./page.js";

const every = 5000, atMost = 1000;
let held = false, reading = false, again = false, anew = false, told = false, readAt = 0, asOf = Date.now(), timer = 0, streaming = false;

const still = () => $("main").hasAttribute("data-still");
const hold = $("#hold");

const say = (text, kind) => {
  const pulse = $("#pulse");
  if (pulse.textContent !== text) pulse.textContent = text;
  pulse.className = "pulse " + kind;
};

// idle shows how the page is kept up to date.
function idle() {
  hold.hidden = still();
  if (still()) say("", "");
  else if (held) say("paused", "");
  else say(streaming ? "live" : "every 5 s", streaming ? "live" : "");
}

async function read() {
  clearTimeout(timer);
  if (reading) { again = true; return; }
  const wasTold = told;
  reading = true; again = false; told = false; readAt = Date.now();
  try {
    const headers = { Accept: "text/html", ...(anew && { "X-Fresh": "1" }) };
    anew = false;
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    if (answer.status === 401 || answer.redirected) { location.reload(); return; }
    if (answer.ok && $("main .problem")) { location.reload(); return; } // load the whole page, including its navigation
    if (answer.status >= 500 && !$("main .problem")) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!$("main", page)) throw new Error("no page");
    change($("main"), $("main", page));
    $("main").toggleAttribute("data-still", $("main", page).hasAttribute("data-still"));
    change($("footer"), $("footer", page));
    change($("#closed"), $("#closed", page));
    document.title = page.title;
    document.dispatchEvent(new Event("renewed"));
    asOf = readAt;
    idle();
  } catch {
    say("no response; as of " + new Date(asOf).toLocaleTimeString(), "lost");
  } finally {
    reading = false;
    // The server may respond with data that is a second old, so the page is read once more after a notification.
    next(again ? atMost : wasTold ? 2 * atMost : every);
  }
}

function next(wait) {
  clearTimeout(timer);
  if (still() || held || document.hidden) return;
  timer = setTimeout(read, wait);
}

// heard reads the page immediately, or one second after the previous read.
function heard() {
  if (held) return;
  told = true;
  if (reading) { again = true; return; }
  clearTimeout(timer);
  timer = setTimeout(read, Math.max(0, readAt + atMost - Date.now()));
}

function change(from, to) {
  Idiomorph.morph(from, to.innerHTML, {
    morphStyle: "innerHTML", ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (node) => !(node.nodeType === 1 && node.hasAttribute("data-keep")),
      beforeAttributeUpdated: (name) => name !== "open",
    },
  });
}

// follow listens to one of the API's streams. An event only signals that something has changed.
async function follow(path) {
  let wait = 1000;
  for (;;) {
    if (document.hidden) await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
    if (still()) return;
    const stop = new AbortController();
    const hide = () => { if (document.hidden) stop.abort(); }; // browsers limit the connections to a host
    document.addEventListener("visibilitychange", hide);
    try {
      const answer = await fetch(new URL(path, api), { headers: { Accept: "text/event-stream" }, cache: "no-store", signal: stop.signal });
      if (!answer.ok || !(answer.headers.get("Content-Type") || "").startsWith("text/event-stream")) throw new Error("no stream");
      streaming = true; wait = 1000; idle();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
        rest = blocks.pop();
        const names = blocks.map((block) => /^event: ?(.*)$/m.exec(block)?.[1] ?? (/^data:/m.test(block) ? "message" : ""));
        if (names.some((name) => name !== "" && name !== "snapshot")) heard();
      }
    } catch { wait = Math.min(wait * 2, 60000); }
    streaming = false;
    document.removeEventListener("visibilitychange", hide);
    if (still()) return;
    if (!document.hidden) await new Promise((go) => setTimeout(go, wait));
  }
}

// revive resumes the updates of a page that had stopped changing, because an action may have changed it.
export function revive() {
  const ended = still();
  $("main").removeAttribute("data-still");
  anew = true; readAt = 0;
  if (held) read();
  else heard();
  if (ended && document.body.dataset.live) follow(document.body.dataset.live);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) heard(); });

// The user can pause updates while reading the page. A paused page still shows the results of the user's own actions.
hold.addEventListener("click", () => {
  held = !held;
  $("use", hold).setAttribute("href", held ? "#i-running" : "#i-hold");
  $(".sr", hold).textContent = held ? "Resume updates" : "Pause updates";
  idle();
  if (held) clearTimeout(timer);
  else heard();
});

// keepUp starts the updates, unless the page no longer changes.
export function keepUp() {
  if (still()) return;
  readAt = Date.now();
  idle();
  next(every);
  if (document.body.dataset.live) follow(document.body.dataset.live);
}
