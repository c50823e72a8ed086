// Actions on many jobs: the selected jobs of a list, or all jobs that match a filter. Jobs whose state does not allow the action are skipped.
import { ask } from "./ask.js";
import { revive } from "./live.js";
import { tell } from "./page.js";
import { picks, unpick } from "./picks.js";
import { request } from "./request.js";
import { undone } from "./undone.js";

async function bulk(button) {
  const { bulk: verb, states, label } = button.dataset;
  const fit = picks().filter(({ row }) => states.split(" ").includes(row.state));
  const left = picks().length - fit.length;
  const title = `${label} ${fit.length} ${fit.length === 1 ? "job" : "jobs"}`;
  const text = left ? `${left} of the selected jobs are skipped because of their state.` : "";
  const reason = await ask(title, text, fit.map(({ id, row }) => `#${id} ${row.kind}, ${row.state.replaceAll("_", " ")}`), verb === "cancel");
  if (reason === null) return;
  button.disabled = true;
  const wrong = [];
  let sent = 0;
  for (const { id } of fit) {
    const { wrong: said, signedOut } = await request(`POST jobs/${id}/${verb}`, undefined, reason);
    if (signedOut && sent > 0) undone(`Your session has ended. ${label}: the request was sent for ${sent} of ${fit.length} jobs, and not for the others.`);
    if (signedOut) { revive(); return; }
    sent++;
    if (said) wrong.push(`#${id}: ${said}`);
  }
  unpick();
  tell(wrong.length < fit.length ? `${label}: ${fit.length - wrong.length} of ${fit.length} done` : "", wrong.slice(0, 5).join(" · ") + (wrong.length > 5 ? ` · and ${wrong.length - 5} more` : ""));
  revive();
}

// many acts on all jobs that match a filter, after a preview that shows their number and the first few jobs.
async function many(button) {
  const { many: what, filter, words, label } = button.dataset;
  const body = (dry) => `{"filter":${filter},"dry_run":${dry}}`;
  const jobs = (n) => `${n.toLocaleString("en")} ${n === 1 ? "job" : "jobs"}`;
  button.disabled = true;
  const { said: would, wrong: not } = await request(what, body(true));
  button.disabled = false;
  if (not || !would.matched) { tell("", `${label}: ${not || `no job matches: ${words}`}`); return; }
  const text = `All matching jobs: ${words}. ` + (would.more ? `This covers the first ${jobs(would.matched)}; repeat it for the others. ` : "") +
    (would.matched > would.sample.length ? "The first ids:" : "Ids:");
  const reason = await ask(`${label} ${jobs(would.matched)}`, text, would.sample.map((id) => "#" + id), button.classList.contains("danger"));
  if (reason === null) return;
  button.disabled = true;
  const { said, wrong } = await request(what, body(false), reason);
  button.disabled = false;
  tell(wrong ? "" : `${label}: ${jobs(said.done)} done` + (said.skipped ? `, ${said.skipped} skipped because their state changed` : ""), wrong && `${label}: ${wrong}`);
  revive();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-bulk], button[data-many]");
  if (button) (button.dataset.many ? many : bulk)(button);
});
