// The dashboard's own script. It keeps the page up to date and sends what buttons say. Without it the pages can be read.
"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const api = new URL(document.body.dataset.api, location.href);
  document.documentElement.classList.add("js");

  // ---- keep up to date: read the page again and change what differs. What a person is filling in, or has opened, stays: such a thing
  // has an id, or lies in one that has, for without one it could be taken for its neighbour.

  const every = 5000, atMost = 1000;
  let reading = false, again = false, anew = false, told = false, readAt = 0, asOf = Date.now(), timer = 0, streaming = false;
  // A link to a thing that is folded away unfolds it, once, also when it only appears later.
  let unfolded = false;
  function unfold() {
    const there = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (unfolded || there?.tagName !== "DETAILS") return;
    unfolded = there.open = true;
    there.scrollIntoView();
  }

  const still = () => $("main").hasAttribute("data-still");

  const say = (text, kind) => {
    const pulse = $("#pulse");
    if (pulse.textContent !== text) pulse.textContent = text;
    pulse.className = "pulse " + kind;
  };

  async function read() {
    clearTimeout(timer);
    if (reading) { again = true; return; }
    const wasTold = told;
    reading = true; again = false; told = false; readAt = Date.now();
    try {
      const headers = { Accept: "text/html", ...(anew && { "X-Anew": "1" }) };
      anew = false;
      const answer = await fetch(location.href, { headers, cache: "no-store" });
      if (answer.status === 401 || answer.redirected) { location.reload(); return; }
      if (answer.ok && $("main .problem")) { location.reload(); return; } // the whole page, with its navigation
      if (answer.status >= 500 && !$("main .problem")) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!$("main", page)) throw new Error("no page");
      change($("main"), $("main", page));
      $("main").toggleAttribute("data-still", $("main", page).hasAttribute("data-still"));
      change($("footer"), $("footer", page));
      document.title = page.title;
      count();
      unfold();
      asOf = readAt;
      say(still() ? "" : streaming ? "live" : "every 5 s", streaming ? "live" : "");
    } catch {
      say("no answer; as of " + new Date(asOf).toLocaleTimeString(), "lost");
    } finally {
      reading = false;
      // What the server answers may be a second old: whoever was told of a change looks once more.
      next(again ? atMost : wasTold ? 2 * atMost : every);
    }
  }

  function next(wait) {
    clearTimeout(timer);
    if (still() || document.hidden) return;
    timer = setTimeout(read, wait);
  }

  // heard reads the page soon: at once, or when a second has passed since the last time.
  function heard() {
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

  // follow listens to a stream of the API. What it says is only that something has changed.
  async function follow(path) {
    let wait = 1000;
    for (;;) {
      if (document.hidden) await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
      if (still()) return;
      const stop = new AbortController();
      const hide = () => { if (document.hidden) stop.abort(); }; // a browser has few connections to a host
      document.addEventListener("visibilitychange", hide);
      try {
        const answer = await fetch(new URL(path, api), { headers: { Accept: "text/event-stream" }, cache: "no-store", signal: stop.signal });
        if (!answer.ok || !(answer.headers.get("Content-Type") || "").startsWith("text/event-stream")) throw new Error("no stream");
        streaming = true; wait = 1000; say("live", "live");
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

  // ---- send what buttons and forms say

  const verbs = /^(\S+) (.*)$/;

  // send sends one request to the API, its body as JSON text, and returns what is to be said if it was refused.
  const send = async (what, body, reason) => (await request(what, body, reason)).wrong;

  // request sends one request to the API, and returns its answer, or what is to be said if it was refused.
  async function request(what, body = "{}", reason = "") {
    const [, method, path] = verbs.exec(what);
    const headers = { "Content-Type": "application/json", Accept: "application/json" };
    // A header holds bytes, which here are UTF-8; there are no lines in it.
    if (reason) headers["X-Reason"] = String.fromCharCode(...new TextEncoder().encode(reason.replace(/[\0-\x1f\x7f]+/g, " ")));
    try {
      const answer = await fetch(new URL(path, api), { method, headers, ...(method !== "GET" && { body }) });
      const said = await answer.json().catch(() => ({}));
      if (answer.ok) return { said, wrong: "" };
      return { said, wrong: [said.message || answer.statusText || String(answer.status), said.detail].filter(Boolean).join(": ") +
        (said.request_id ? ` (request ${said.request_id})` : "") };
    } catch {
      return { said: {}, wrong: "The server does not answer. It may or may not have been done: look again before you repeat it." };
    }
  }

  function tell(good, wrong) {
    $("#said").textContent = good;
    $("#wrong").textContent = wrong;
    if (good || wrong) scrollTo({ top: 0, behavior: "instant" });
  }

  // ask shows what is about to happen. It returns the reason that was given, which may be empty, or null: not to go on. A dialog tells of
  // its end a moment later: by then the next may be open.
  let answered = () => {};
  $("#ask").addEventListener("close", () => {
    if (!$("#ask").open) answered($("#ask").returnValue === "yes" ? $("#ask-reason").value.trim() : null);
  });

  function ask(title, text, list, danger) {
    const box = $("#ask"), yes = $("#ask-yes");
    answered(null);
    $("#ask-title").textContent = title + "?";
    $("#ask-text").textContent = text;
    $("#ask-list").replaceChildren(...list.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
    yes.textContent = title;
    yes.className = danger ? "danger" : "primary";
    box.returnValue = $("#ask-reason").value = "";
    box.showModal();
    return new Promise((go) => { answered = go; });
  }

  async function press(button) {
    const { send: what, label, ask: text } = button.dataset;
    const reason = text ? await ask(label, text, [], button.classList.contains("danger")) : "";
    if (reason === null) return;
    button.disabled = true;
    const wrong = await send(what, undefined, reason);
    button.disabled = false;
    tell(wrong ? "" : label + ": done", wrong ? label + ": " + wrong : "");
    revive();
  }

  // revive reads a page again that had ended: what was done may have changed that.
  function revive() {
    const ended = still();
    $("main").removeAttribute("data-still");
    anew = true; readAt = 0;
    heard();
    if (ended && document.body.dataset.live) follow(document.body.dataset.live);
  }

  // valueOf is the JSON text of a field: that of a field for JSON as it stands, for a number may have more digits than we can hold.
  function valueOf(field) {
    if ("json" in field.dataset) { JSON.parse(field.value); return field.value; }
    if ("text" in field.dataset) return JSON.stringify(field.value);
    if ("lines" in field.dataset) return JSON.stringify(field.value.split("\n").filter((line) => line !== ""));
    if (field.type === "checkbox") return JSON.stringify(field.checked);
    if (field.type === "select-one") return JSON.stringify(field.value);
    if (field.value === "") return "null";
    return JSON.stringify(field.type === "number" ? Number(field.value) : field.value);
  }

  // changed reports whether a person changed a field.
  function changed(field) {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.type === "select-one") return !field.selectedOptions[0]?.defaultSelected && (field.selectedIndex > 0 || [...field.options].some((one) => one.defaultSelected));
    return field.value !== field.defaultValue;
  }

  // fill returns what a person changed in a form, by the names of its fields, as JSON text; empty: nothing.
  function fill(form) {
    const texts = [];
    for (const field of form.elements) {
      if (!field.name || "path" in field.dataset) continue;
      if (changed(field) || "always" in field.dataset) texts.push(JSON.stringify(field.name) + ":" + valueOf(field));
    }
    return texts.length ? "{" + texts.join(",") + "}" : "";
  }

  async function submit(form) {
    const { label, ask: text } = form.dataset;
    let what = form.dataset.form, body;
    for (const field of all("[data-path]", form)) what = what.replace("{" + field.name + "}", encodeURIComponent(field.value));
    try { body = fill(form); } catch (wrong) { tell("", label + ": this is no JSON: " + wrong.message); return; }
    if (what.startsWith("PATCH") && !body) { tell("", label + ": nothing was changed"); return; }
    const reason = text ? await ask(label, text, [], Boolean($("button.danger", form))) : "";
    if (reason === null) return;
    const wrong = await send(what, body || undefined, reason);
    if (wrong) { tell("", label + ": " + wrong); return; }
    if (form.dataset.then) { location.assign(form.dataset.then); return; }
    for (const field of form.elements) {
      if (field.type === "select-one") { for (const one of field.options) one.defaultSelected = one.selected; continue; }
      field.defaultValue = field.value;
      field.defaultChecked = field.checked;
    }
    tell(label + ": " + (what.startsWith("P") && !text ? "saved" : "done"), "");
    revive();
  }

  // ---- say what an expression means while it is typed

  let lookedAt = 0;
  async function preview(form) {
    const place = $(".preview", form), mine = ++lookedAt;
    const { expression, zone } = form.elements;
    await new Promise((go) => setTimeout(go, 250)); // until a person pauses
    if (mine !== lookedAt) return;
    if (!expression.value) { place.replaceChildren(); return; }
    const asked = new URLSearchParams({ expression: expression.value, zone: zone.value });
    const { said, wrong } = await request("GET admin/workers/schedules/preview?" + asked, null);
    if (mine !== lookedAt) return;
    const line = (name, text, as = "") => Object.assign(document.createElement(name), { textContent: text, className: as });
    place.classList.toggle("wrong", Boolean(wrong));
    if (wrong) { place.replaceChildren(line("p", wrong)); return; }
    const clock = new Intl.DateTimeFormat("en-GB", { timeZone: said.zone, weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
    const fires = line("ol", "", "fires");
    fires.append(...said.next_fires.map((at) => line("li", clock.format(new Date(at)))));
    place.replaceChildren(line("p", said.words, "words"), said.next_fires.length ? fires : line("p", "It never fires."));
  }

  // The zones that this browser knows are offered when somebody looks for one.
  document.addEventListener("focusin", (event) => {
    const list = event.target.list;
    if (list?.id === "zones" && !list.children.length) list.append(...["UTC", ...Intl.supportedValuesOf("timeZone")].map((value) => Object.assign(document.createElement("option"), { value })));
  });
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (form && "preview" in form.dataset && ["expression", "zone"].includes(event.target.name)) preview(form);
  });
  document.addEventListener("toggle", (event) => {
    const form = event.target.open && $("form[data-preview]", event.target);
    if (form) preview(form);
  }, true);

  // ---- pick jobs of a list, and cancel or retry those of them for which that means something

  const picks = () => all("input[name=pick]:checked").map((box) => ({ id: box.value, row: $("th", box.closest("tr")).dataset }));

  function count() {
    const picked = picks();
    if ($("#picked")) $("#picked").textContent = picked.length ? picked.length + (picked.length === 1 ? " job is picked" : " jobs are picked") : "Nothing is picked";
    for (const button of all("[data-bulk]")) button.disabled = !picked.some(({ row }) => button.dataset.states.split(" ").includes(row.state));
  }

  async function bulk(button) {
    const { bulk: verb, states, label } = button.dataset;
    const fit = picks().filter(({ row }) => states.split(" ").includes(row.state));
    const left = picks().length - fit.length;
    const title = `${label} ${fit.length} ${fit.length === 1 ? "job" : "jobs"}`;
    const text = left ? `${left} of the picked jobs stay as they are: for their state this means nothing.` : "";
    const reason = await ask(title, text, fit.map(({ id, row }) => `#${id} ${row.kind}, ${row.state.replaceAll("_", " ")}`), verb === "cancel");
    if (reason === null) return;
    button.disabled = true;
    const wrong = [];
    for (const { id } of fit) {
      const said = await send(`POST jobs/${id}/${verb}`, undefined, reason);
      if (said) wrong.push(`#${id}: ${said}`);
    }
    for (const box of all("input[name=pick], #pick-all")) box.checked = false;
    tell(wrong.length < fit.length ? `${label}: ${fit.length - wrong.length} of ${fit.length} done` : "", wrong.slice(0, 5).join(" · ") + (wrong.length > 5 ? ` · and ${wrong.length - 5} more` : ""));
    revive();
  }

  // many does something to all jobs of a filter, after a look at how many they are and which come first.
  async function many(button) {
    const { many: what, filter, words, label } = button.dataset;
    const body = (dry) => `{"filter":${filter},"dry_run":${dry}}`;
    const jobs = (n) => `${n.toLocaleString("en")} ${n === 1 ? "job" : "jobs"}`;
    button.disabled = true;
    const { said: would, wrong: not } = await request(what, body(true));
    button.disabled = false;
    if (not || !would.matched) { tell("", `${label}: ${not || `no job of this filter can be: ${words}`}`); return; }
    const text = `All jobs of this filter: ${words}. ` + (would.more ? `There are more: this is for the first ${jobs(would.matched)}, press again for the others. ` : "") +
      (would.matched > would.sample.length ? "The first of them:" : "They are:");
    const reason = await ask(`${label} ${jobs(would.matched)}`, text, would.sample.map((id) => "#" + id), button.classList.contains("danger"));
    if (reason === null) return;
    button.disabled = true;
    const { said, wrong } = await request(what, body(false), reason);
    button.disabled = false;
    tell(wrong ? "" : `${label}: ${jobs(said.done)} done` + (said.passed ? `, ${said.passed} had moved meanwhile` : ""), wrong && `${label}: ${wrong}`);
    revive();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-send], button[data-bulk], button[data-many]");
    if (button) (button.dataset.many ? many : button.dataset.bulk ? bulk : press)(button);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.dataset.form) return;
    event.preventDefault();
    submit(event.target);
  });
  // Who has given a reason goes on with the enter key, which else would press the first button of the dialog.
  $("#ask-reason").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    $("#ask").close("yes");
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of all("input[name=pick]")) box.checked = event.target.checked;
    count();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) heard(); });
  addEventListener("hashchange", () => { unfolded = false; unfold(); });
  unfold();

  if (!still()) {
    readAt = Date.now();
    say("every 5 s", "");
    next(every);
    if (document.body.dataset.live) follow(document.body.dataset.live);
  }
})();
