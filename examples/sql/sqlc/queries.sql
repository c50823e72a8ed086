-- name: InsertOrder :exec
insert into orders (no) values ($1);
