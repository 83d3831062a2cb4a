// Package control runs a cell: it reads what is wanted, polls the nodes, sends them the orders
// of package cell, and gives routes to proxies. It decides nothing.
package control
