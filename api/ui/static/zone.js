// Shows times in the browser's time zone, or in UTC. The server writes UTC; the choice is stored in the browser.
import { $, all } from "./page.js";

const key = "zone";
const local = new Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";
const inUTC = () => local === "UTC" || localStorage.getItem(key) === "UTC";

// clock formats a time in a zone, followed by the zone's abbreviation.
function clock(time, timeZone) {
  const part = {};
  const format = { timeZone, timeZoneName: "short", hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  for (const { type, value } of new Intl.DateTimeFormat(undefined, { ...format, calendar: "gregory", numberingSystem: "latn" }).formatToParts(time)) part[type] = value;
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
}

// show writes absolute times in the chosen zone. Each time's title shows the time in UTC, preceded by the local time if the text is relative.
function show() {
  const utc = inUTC();
  for (const one of all("time[datetime]:not(.fixed)")) {
    const at = new Date(one.dateTime);
    const exact = at.toISOString().replace("T", " ").replace("Z", " UTC");
    const text = utc ? clock(at, "UTC") : clock(at, local);
    if (one.classList.contains("clock")) one.textContent = text;
    one.title = utc || one.classList.contains("clock") ? exact : `${text} · ${exact}`;
  }
  $("#shown-zone").textContent = utc ? "UTC" : local;
  $("#other-zone").textContent = utc ? "Show " + local : "Show UTC";
}

// switchZone switches between local times and UTC.
export function switchZone() {
  localStorage.setItem(key, inUTC() ? "local" : "UTC");
  show();
}

$("#zone-choice").hidden = local === "UTC"; // there is nothing to choose
$("#other-zone").addEventListener("click", switchZone);
document.addEventListener("renewed", show);
show();
